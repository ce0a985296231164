"""A service as people see it: a live line, and a report of its run."""

from stoker.ui.serving.line import ServedLine

__all__ = ["ServedLine"]
