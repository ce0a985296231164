"""How many more descriptors this process may open."""

from __future__ import annotations

import os
import resource
import sys


def spare_descriptors() -> int:
    """Descriptors that can still be opened under the soft limit; a large number without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    try:
        return limit - len(os.listdir("/proc/self/fd")) + 1  # the listing itself had one open
    except OSError:  # not one is left
        return 0
