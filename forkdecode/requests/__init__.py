"""From what callers write to requests of token ids, and from token events back to text. No torch."""
