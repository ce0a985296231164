"""Files for a cluster on Kubernetes: rendered and checked here, applied by the user."""
