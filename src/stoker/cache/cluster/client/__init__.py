"""Asks the nodes of a cluster for pages.

``client`` is what others use; ``connection_pool`` keeps connections, ``range_request`` asks one node and ``gather``
several at once. ``lanes`` and ``same_host`` are fast paths; ``breaker``, ``hedging`` and ``budget`` decide about time
and load and know no sockets.
"""
