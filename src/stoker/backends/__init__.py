"""Where data workers run. Each backend starts them; what they do is ``feed``'s."""
