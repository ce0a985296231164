"""Filling the cache beforehand: what is missing, and bringing it to this machine or to a cluster."""
