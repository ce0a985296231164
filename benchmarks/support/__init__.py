"""What benchmarks share: rounds in alternation, servers, memory, loaders under test."""
