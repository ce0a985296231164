"""One data worker: leases in, batches out."""
