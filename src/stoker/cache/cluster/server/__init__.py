"""A node that serves its pages to others.

``worker`` is the process, ``server`` listens, ``reactor`` waits for requests, ``hits`` and ``serving`` answer them,
``fills`` reads the stores and ``grants`` says for whom. ``pin_transfer`` hands pages over when the node leaves.
``http_door`` is a second way in, in a process of its own (``http_sidecar``).
"""
