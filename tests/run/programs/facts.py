"""Prints what a program can see of the way it was started; the tests compare two such prints."""

import json
import os
import pickle
import sys

OURS = ("STOKER_ACTIVE", "PYTHONPATH")


class Local:
    """A class of ``__main__``."""


def facts():
    main = sys.modules["__main__"]
    spec = main.__spec__
    return {
        "name": __name__,
        "file": getattr(main, "__file__", None),
        "main_is_here": main.__dict__ is globals(),
        "package": main.__package__,
        "spec": spec and [spec.name, spec.origin, type(spec.loader).__name__],
        "loader": str(type(main.__loader__)),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "path_importer_cache": sorted(entry for entry in sys.path_importer_cache if "stoker" not in entry),
        "meta_path": [str(type(finder)) for finder in sys.meta_path if "stoker" not in str(type(finder))],
        "flags": str(sys.flags),
        "warnoptions": sys.warnoptions,
        "xoptions": sorted(map(str, sys._xoptions.items())),
        "executable": [sys.executable, sys.prefix, sys.base_prefix],
        "pickle": pickle.dumps(Local()).hex(),
        "sitecustomize": getattr(sys.modules.get("sitecustomize"), "__file__", None),
        "stdin": sys.stdin.read() if not sys.stdin.closed else None,
        "streams": [str(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)],
        "parent": os.getppid(),
        "modules": sorted(name for name in sys.modules if name.split(".")[0] not in ("stoker", "__future__")),
        "environ": {name: value for name, value in os.environ.items() if name not in OURS},
        "descriptors": sorted(os.listdir("/proc/self/fd")),
    }


if __name__ == "__main__":
    print(json.dumps(facts(), indent=1))
