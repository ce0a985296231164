"""The protocol over HTTP: a plain ASGI callable for inference, Starlette for all else."""
