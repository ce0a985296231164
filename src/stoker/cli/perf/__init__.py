"""The commands below `stoker perf`, one module each."""
