"""Records the calls of steps and merges what several steps share into one graph."""
