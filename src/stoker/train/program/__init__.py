"""What is changed in a running program, and undone by one call."""
