"""Which groups run in a step, with which blocks, and what becomes of them after it."""
