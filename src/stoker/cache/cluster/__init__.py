"""Nodes that share their caches: who holds which page, how it is asked for, and what happens when a node is lost.

``ring`` and ``membership`` say who is there, ``frames`` what is said, ``server`` answers, ``client`` asks; ``breaker``,
``hedging`` and ``budget`` decide about time and load and know no sockets.
"""
