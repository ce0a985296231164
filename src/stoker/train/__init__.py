"""Changes how a running program trains: only as far as its user asks for, and undone by one call."""
