"""Places for buffers in one piece of memory; pure. The prediction of memory and what acts on it both need them."""
