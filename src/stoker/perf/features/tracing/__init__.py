"""Runs one training step on tensors without data, and notes its operators, layers and memory."""
