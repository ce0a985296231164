"""Runs bars in forks of one process, which saves importing torch for each.

A line of standard input names a bar and a folder, which gets what the bar prints; each is answered with its status.
"""

import os
import runpy
import sys
from pathlib import Path

import torch.utils.data  # noqa: F401 - what all bars need


def redirect(number: int, path: Path) -> None:
    """Has a descriptor written to a file from now on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, number)
    os.close(descriptor)


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    for line in sys.stdin:
        name, folder = line.rstrip("\n").split(" ", 1)
        if not os.fork():
            redirect(1, Path(folder) / "out")
            redirect(2, Path(folder) / "err")
            sys.argv[:] = [name, "--tiny", "--json"]
            runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
            sys.exit()
        print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
