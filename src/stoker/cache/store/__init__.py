"""Pages on the disk of one machine, shared by all processes of a user.

``layout`` is the directory, ``locks`` keep processes apart, ``records`` and ``checksums`` say what a page looks like on
disk, ``index`` finds it, ``table`` lists the files, ``segments`` and ``large`` write and map them, ``eviction`` decides
what goes, ``room`` makes room, and ``page_store`` is what the rest of the cache uses.
"""
