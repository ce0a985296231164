"""Connections between processes, on one machine or several: the common part of all of stoker's protocols.

``framing`` defines headers and splits bytes into frames, ``blocking`` and ``polled`` carry them over a socket,
``sockets`` creates sockets, ``secrets`` authenticates peers and ``tls`` encrypts. The protocols define the frames:
``feed.transport.messages`` for data workers, ``cache.cluster`` for nodes of the cache.
"""
