"""The files of a page store on disk, and the verification of their bytes."""
