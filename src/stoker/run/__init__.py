"""`stoker run`: assembles feed, telemetry and reports around an unmodified program."""
