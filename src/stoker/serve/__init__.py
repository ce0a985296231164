"""A service that answers with a model: the protocol on the wire, the queue before the engines, and their processes."""
