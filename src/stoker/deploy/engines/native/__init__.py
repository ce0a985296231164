"""The CPU engine: C++ written for one graph, compiled once, called through ctypes."""
