"""What each rank keeps a share of: states of optimizers, or weights and gradients as well."""
