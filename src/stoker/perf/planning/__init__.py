"""Which hardware, how many GPUs and which strategy come closest to what a job may cost and how long it may take."""
