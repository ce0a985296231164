"""Runs at the start of each interpreter below `stoker run`: arms the hook, then gets out of the way.

Python imports the first `sitecustomize` on its path, so this one loads the one it hides. Its syntax is plain on
purpose: any interpreter that inherits the environment reads this file, of any version, with or without stoker
installed.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if entry != _here]  # as in plain python; children find us by PYTHONPATH
sys.path_importer_cache.pop(_here, None)

if os.environ.get("STOKER_ACTIVE"):
    try:
        from stoker.run import hook

        hook.arm()
    except Exception:  # another interpreter, without stoker or too old for it: not served
        pass

if os.environ.get("STOKER_CACHE_RUN") or os.environ.get("STOKER_CACHE_INSTALL"):
    try:
        from stoker.run.caching import hook as cache_hook

        cache_hook.arm()
    except Exception:  # as above
        pass

# Last, so that whatever it raises reaches python as it would without us; so does its absence (an ImportError with this
# name is how python's `site` sees that there is none).
sys.modules.pop(__name__, None)
import sitecustomize  # noqa: E402, F401  # pyright: ignore[reportMissingImports, reportUnusedImport]
