"""Engines over other libraries: torch and ONNX Runtime."""
