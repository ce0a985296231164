"""Executions of a graph, equal on every output: NumPy (the law), C++ made for the graph, ONNX Runtime."""
