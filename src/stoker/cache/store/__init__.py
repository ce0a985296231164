"""Pages on the disk of one machine, shared by all processes of a user.

``layout`` is the directory, ``locks`` keep processes apart, ``records`` and ``checksums`` define what a page looks like
on disk, ``index`` finds it, ``table`` lists the files, ``segments`` and ``writing`` write them, ``maps`` map them.
``access_log`` and ``epoch_clock`` record reads, ``eviction`` decides what is evicted and ``space`` evicts it.
``contents``, ``pins`` and ``maintenance`` serve commands; ``components`` assembles all, and ``page_store`` is the
interface for the rest of the cache.
"""
