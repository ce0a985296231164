"""Eviction: when files were read, which are evicted, and what is rejected meanwhile."""
