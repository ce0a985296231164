"""Layers of a running program: what is seen of them, how they are split and joined between two steps, and tried."""
