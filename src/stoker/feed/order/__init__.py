"""Which work items there are, in which order, and where a program is in them."""
