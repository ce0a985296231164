"""Layers that each rank keeps some of: stages of a pipeline, through which the batches of all ranks go."""
