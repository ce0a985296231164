"""The exchange of gradients in a running program: measured, planned, tried, checked in each step."""
