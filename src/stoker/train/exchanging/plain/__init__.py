"""What DDP does without a plan, bit for bit, over the ranks that make steps."""
