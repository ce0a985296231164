"""Reused regions of shared memory, between a process and those that it has work done by."""
