"""Runs an example several times in one process, which saves starting torch for each; the argument is JSON.

A list of ``[name, options of the example, settings]``; with settings it is served by ``stoker.feeding``. What each run
prints follows a line ``== name``.
"""

import contextlib
import json
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    program, runs = sys.argv[1], json.loads(sys.argv[2])
    sys.path.insert(0, str(Path(program).parent))
    for name, options, settings in runs:
        print(f"== {name}", flush=True)
        sys.argv[:] = [program, *options]
        served = contextlib.nullcontext()
        if settings is not None:
            import stoker

            served = stoker.feeding(**settings)
        with served:
            runpy.run_path(program, run_name="__main__")
