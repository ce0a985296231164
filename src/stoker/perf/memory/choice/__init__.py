"""What makes a program fit in the least time: units of its model, options for all of it, and the plan; pure."""
