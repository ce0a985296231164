"""Which steps of a thread are watched, and the modes of torch under which that happens."""
