"""Features of a program: what one training step computes, touches and keeps, found without a GPU."""
