"""Constraints: catalogues, grammars and callables, and what makes them of what a caller names."""
