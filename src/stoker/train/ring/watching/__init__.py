"""The watch over the ranks of an exchange, and the lookout for those that a backend carries."""
