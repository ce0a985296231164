"""From the calls that a step makes to one graph: what several steps have in common."""
