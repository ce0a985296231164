"""Processes: forks, lives that are tied to a parent's, interrupts, work of low priority."""
