"""Decisions of the feed: state machines of one iteration of one loader. No clock, no processes, no bytes."""
