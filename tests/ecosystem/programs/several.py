"""Runs programs one after the other in one process, which saves starting torch and its frameworks for each.

The argument is JSON: a list of a program's file name and its arguments.
"""

import json
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    for program, *arguments in json.loads(sys.argv[1]):
        print("==", program, flush=True)
        path = str(Path(__file__).with_name(program))
        sys.argv[:] = [path, *arguments]
        runpy.run_path(path, run_name="__main__")
        sys.stdout.flush()
