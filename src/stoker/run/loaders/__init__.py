"""The loaders of a process under stoker: torch's DataLoader replaced, its batches served, its steps cut."""
