"""The model side of a step: loading, KV cache, attention hook, runner."""
