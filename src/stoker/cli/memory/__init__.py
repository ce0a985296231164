"""`stoker memory`."""
