"""Integer models: what making and proving them came to."""
