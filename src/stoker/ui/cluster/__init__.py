"""A simulated cluster, as text and as a page."""
