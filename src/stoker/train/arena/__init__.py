"""One planned piece of memory for what a compiled step computes."""
