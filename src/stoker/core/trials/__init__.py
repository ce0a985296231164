"""Trials of a change in the running program, which decide whether it stays."""
