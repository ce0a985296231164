"""The host: a process on a machine that has data workers for programs elsewhere."""
