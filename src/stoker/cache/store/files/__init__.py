"""The files of a page store as they lie on the disk, and how their bytes are proven."""
