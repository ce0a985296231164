"""Runs a program on a GPU while torch records its allocator: ``recorded_memory.py SNAPSHOT PROGRAM [arguments]``.

Prints one line of JSON: most bytes requested, allocated (rounded) and reserved, and the card. SNAPSHOT, unless it is
``-``, is written with all events from the start.
"""

from __future__ import annotations

import json
import runpy
import sys

import torch


def main() -> None:
    """Records the program named by the arguments."""
    snapshot, program = sys.argv[1:3]
    if snapshot != "-":
        torch.cuda.memory._record_memory_history(max_entries=1_000_000)
    sys.argv = sys.argv[2:]
    runpy.run_path(program, run_name="__main__")
    torch.cuda.synchronize()
    found = torch.cuda.memory_stats()
    if snapshot != "-":
        torch.cuda.memory._dump_snapshot(snapshot)
    print(
        json.dumps(
            {
                "requested": found["requested_bytes.all.peak"],
                "allocated": found["allocated_bytes.all.peak"],
                "reserved": found["reserved_bytes.all.peak"],
                "device": torch.cuda.get_device_name(),
            }
        )
    )


if __name__ == "__main__":
    main()
