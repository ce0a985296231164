"""What a run, a plan, a profile and a fleet are recorded as: all that people are shown is made of these."""
