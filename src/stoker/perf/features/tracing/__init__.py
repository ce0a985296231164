"""Runs one training step on tensors without data, and records its operators, layers and memory."""
