"""Which nodes there are, which of them holds a page (``ring``), and which pages several hold (``hot_chunks``).

``joining`` opens a membership: a list, a file (``membership``), or etcd.
"""
