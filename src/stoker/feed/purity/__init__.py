"""Whether a loader gives the same samples in any order, process and repetition, and how it is served therefore."""
