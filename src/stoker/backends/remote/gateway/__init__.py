"""The gateway: the process that holds a training process's connections to hosts."""
