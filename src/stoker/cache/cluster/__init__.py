"""Nodes that share their caches: who holds which page, how it is asked for, and what happens when a node is lost.

``membership`` says who is there and who holds what, ``messages`` what is said, ``server`` answers, ``client`` asks. The
layers below are ``wire``, which carries the messages, and the pages of this node.
"""
