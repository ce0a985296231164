"""The allocator of a cluster as an actor of Ray: grants of CPUs to jobs, and the queue of submitted jobs."""
