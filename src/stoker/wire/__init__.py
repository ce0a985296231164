"""Connections between processes, of this machine or of several: what all that stoker sends has in common.

``framing`` says how frames begin and cuts bytes into them, ``blocking`` and ``polled`` carry them over a socket,
``sockets`` makes sockets, ``secrets`` proves who is there and ``tls`` encrypts. What a frame means is its protocol's:
``feed.transport.messages`` for data workers, ``cache.cluster`` for nodes of the cache.
"""
