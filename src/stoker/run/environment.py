"""Names of the variables that a run hands to its processes; imports nothing, since every child interpreter reads it."""

ACTIVE_ENV = "STOKER_ACTIVE"
"""Settings of the run as JSON; set for the program and inherited by its child interpreters."""
WORKER_ENV = "STOKER_DATA_WORKER"
"""Set in data workers that are interpreters of their own: the hook leaves them alone."""
CACHE_ENV = "STOKER_CACHE_RUN"
"""Set under ``stoker run --cache``: how reads are routed through the data cache, as JSON."""
