"""The Open Inference Protocol, version 2: requests and answers as JSON and as binary tensors; pure."""
