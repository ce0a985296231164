"""Runs moved calls in data workers, and returns their results in the step that expects them."""
