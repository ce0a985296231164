"""Models that are served: their versions, the queue of each, and the change from one to the next."""
