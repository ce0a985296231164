"""The work items of an iteration, in order, and the program's position among them."""
