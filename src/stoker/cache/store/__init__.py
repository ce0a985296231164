"""Pages on the disk of one machine, shared by all processes of a user.

``layout`` is the directory, ``locks`` keep processes apart, ``records`` and ``checksums`` say what a page looks like
on disk, ``index`` finds it, ``table`` lists the files, ``segments``, ``writing`` and ``large`` write them, ``maps``
map them. ``pulse`` and ``clock`` know what was read when, ``eviction`` decides what goes, ``room`` makes room.
``contents``, ``pins`` and ``upkeep`` are for people; ``parts`` puts all together, and ``page_store`` is what the rest
of the cache uses.
"""
