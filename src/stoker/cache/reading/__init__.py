"""Reading objects: from the cache where it has them, else from peers or the store, never of two versions."""
