"""What a template's child and a gateway say to each other: records of a letter, a length, and bytes.

Apart from what fills them, so that a gateway needs no torch.
"""

from __future__ import annotations

import struct

MAX_PROGRAM_BYTES = 1 << 28
"""A larger program stays here: its dataset has its data in memory, and a machine would take minutes to get it."""
RECORD = struct.Struct("<cQ")
PROGRAM, SAMPLE, DIGEST, FAILED = b"P", b"S", b"D", b"E"
"""A pickled program with its modules; an item of it; what this machine makes of the item; why there is no such."""
MAKE = b"M"
"""Asks for :data:`DIGEST`."""
