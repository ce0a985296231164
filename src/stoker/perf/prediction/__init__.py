"""What a step of a program will take on machines that it has not run on: a time, an interval, and how sure it is."""
