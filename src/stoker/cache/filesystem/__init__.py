"""What programs see of the cache: an fsspec filesystem, its files, and the routing of programs that name neither."""
