"""Layers whose weights are split over the ranks, which exchange activations instead of gradients."""
