"""Tree sessions over an engine: commands to ordinary requests, their events to events of nodes. No torch."""
