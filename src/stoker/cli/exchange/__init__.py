"""`stoker exchange`."""
