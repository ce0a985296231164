"""The watch over the ranks of an exchange, and whom it blames."""
