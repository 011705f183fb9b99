"""Text: token bytes, stop strings, incremental detokenisation."""
