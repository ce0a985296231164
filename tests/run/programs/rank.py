"""One rank of a torchrun job: says who it is and whether it is served."""

import json
import os
import sys

hook = sys.modules.get("stoker.run.hook")
active = json.loads(os.environ.get("STOKER_ACTIVE", "{}"))
print(
    json.dumps(
        {
            "rank": int(os.environ["RANK"]),
            "armed": hook is not None and hook.is_armed(),
            "run_dir": active.get("run_dir"),
            "argv": sys.argv[1:],
            "path": sys.path[0],
        }
    )
    + "\n",
    end="",
    flush=True,
)  # one write, so that ranks do not share a line
