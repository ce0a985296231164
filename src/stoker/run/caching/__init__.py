"""The data cache in a run: what the launcher tells, what processes install, and what came of it."""
