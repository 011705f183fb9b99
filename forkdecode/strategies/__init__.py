"""Decoding strategies: small policies over candidates, and the records of what they chose."""
