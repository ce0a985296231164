"""The records of a run, a plan, a profile and a fleet; everything on display is made from them."""
