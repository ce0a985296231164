"""The data cache in a run: what the launcher passes on, what processes install, and the results."""
