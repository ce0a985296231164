"""The data cache: a read-through cache between any fsspec filesystem and the program, on one machine or many.

``names`` and ``versions`` say what a page is, ``policies`` how stale it may be; ``store`` keeps pages on disk,
``sources`` read the underlying stores and prove versions, ``filesystem`` is what programs see, ``cluster`` joins nodes.
"""
