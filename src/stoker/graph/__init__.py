"""The automatic cut: finds what depends on the batch alone in a training step, and moves it to data workers."""
