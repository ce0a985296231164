"""`stoker run --training-workers`: starts a program's ranks, and restarts them where another number gains."""
