"""Eager CUDA in a planned arena: an allocator for torch that knows a step before it runs."""
