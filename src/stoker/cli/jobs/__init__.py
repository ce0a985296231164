"""`stoker submit`, `queue`, `cancel`, `logs`: jobs of a cluster."""
