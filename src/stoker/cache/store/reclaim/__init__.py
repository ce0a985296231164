"""Making room: what was read when, which files go, and what is refused meanwhile."""
