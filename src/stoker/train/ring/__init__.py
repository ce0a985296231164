"""Sums and copies of tensors over stoker's sockets, block by block."""
