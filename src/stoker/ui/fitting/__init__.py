"""What makes a program fit, and what a run made of it, as text and page."""
