"""What callers of an engine have in common, wherever it runs: arguments, handles, ranking. No numpy."""
