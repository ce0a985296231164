"""Snapshots of torch: read as data of strangers, undone to a history, replayed, reported."""
