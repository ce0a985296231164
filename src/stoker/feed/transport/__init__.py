"""Transport of batches from data workers to the training process: messages, shared pages and slots."""
