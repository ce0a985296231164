"""`stoker deploy`."""
