"""Models and folders of them: weights read as tensors, in the order and at the speed that the cache can give."""
