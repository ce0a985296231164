"""Ray's part: clusters on this machine, joining one, and the broker that obtains CPUs of its nodes."""
