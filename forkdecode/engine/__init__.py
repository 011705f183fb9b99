"""The step loop, and the thread it runs in."""
