"""What a program sees of its loaders: the iterators that take the place of torch's."""
