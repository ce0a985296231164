"""Where each page is: a hash table in a mapped file."""
