"""The automatic cut: finds the part of a training step that depends on the batch alone, and moves it to data workers."""
