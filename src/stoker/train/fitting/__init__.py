"""What makes a running program fit its memory without changing what it computes, undone by one call."""
