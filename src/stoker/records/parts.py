"""The parts of a step: one list for what is predicted and what is measured."""

from __future__ import annotations

PARTS = ("input", "compute", "memory", "host", "communication", "optimizer", "other")
"""What a step's time is spent on, in the order in which it is shown: waiting for input and copying it to the device;
products, convolutions, attention and recurrent layers; all other operations of the model, which move more than they
compute; launching by the host that the device waits for; exchange between GPUs that computation does not hide; the
optimizer; what has no other name. A measured step (`stoker profile`) has the same parts."""
