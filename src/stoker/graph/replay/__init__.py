"""Running moved calls in data workers, and handing their results to the step that expects them."""
