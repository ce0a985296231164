"""Adding pages: to segments, or to the file of a large object."""
