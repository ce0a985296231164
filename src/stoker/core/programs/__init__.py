"""Programs of users: what they are called, and functions of theirs by name."""
