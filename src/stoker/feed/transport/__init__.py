"""How batches go from data workers to the training process: messages, shared pages and slots."""
