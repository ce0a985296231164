"""Compares a measured step with a predicted one: its parts, its bottleneck, and what to do next. Without torch."""
