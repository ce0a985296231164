"""Nodes that share their caches: which node holds a page, how it is requested, and what happens when a node is lost.

``membership`` lists the nodes and maps pages to them, ``messages`` defines the protocol, ``server`` answers requests
and ``client`` sends them. The layers below are ``wire``, which carries the messages, and the page store of this node.
"""
