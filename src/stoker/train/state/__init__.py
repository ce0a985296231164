"""State that ranks hold in parts, served to each other without a collective."""
