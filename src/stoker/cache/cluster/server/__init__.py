"""A node that serves its pages to others.

``worker`` is the process, ``server`` listens, ``reactor`` waits for requests, ``hits`` and ``serving`` answer them,
``fills`` reads the stores and ``grants`` decides for whom. ``pin_transfer`` moves pinned pages when the node leaves.
``http_door`` serves HTTP, in a separate process (``http_sidecar``).
"""
