"""Filling the cache beforehand: finds what is missing, and fetches it to this machine or to a cluster."""
