"""Engines as processes: each forked from one that has its model loaded, with batches in slots of shared memory."""
