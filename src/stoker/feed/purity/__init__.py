"""Whether a loader gives the same samples in any order, process and repetition, and so which tier serves it."""
