"""What decides in the feed: the life of one iteration of one loader as data. No clock, no processes, no bytes."""
