"""Loaders as the program sees them: the iterators that replace torch's."""
