"""What crosses the network: generated messages, and records and errors to and from them."""
