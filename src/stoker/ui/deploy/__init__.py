"""Integer models, as people see them."""
