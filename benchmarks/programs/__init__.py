"""Programs and data that benchmarks run."""
