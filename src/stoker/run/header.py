"""The header of a run, its first record: program, versions, settings and host."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

import numpy as np
import torch

from stoker import __version__
from stoker.core import host
from stoker.core.texts import escaped
from stoker.records.events import RunHeader
from stoker.run.rank import RankPlace
from stoker.run.settings import RunSettings


def describe_run(
    run_id: str, argv: Sequence[str], settings: RunSettings, started_unix_s: float, cpu_budget: float, place: RankPlace
) -> RunHeader:
    """The header of this process's run.

    Args:
        run_id: the same for all ranks.
        argv: the program and its arguments, without stoker's own; nothing where it is typed in.
        settings: those that are not left to stoker are kept.
        started_unix_s: when serving began, in seconds since 1970.
        cpu_budget: cores for the data workers of this process, where the settings leave that to stoker.
        place: this process among the ranks of its program.
    """
    facts = host.read_host()
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    name = torch.cuda.get_device_name() if accelerator is not None and accelerator.type == "cuda" else ""
    return RunHeader(
        run_id=run_id,
        started_unix_s=started_unix_s,
        argv=[escaped(word) for word in argv] if any(argv) else [],
        cwd=escaped(os.getcwd()),
        python=sys.version.split()[0],
        stoker=__version__,
        torch=str(torch.__version__),
        numpy=np.__version__,
        hostname=socket.gethostname(),
        cores=facts.cores,
        memory_bytes=facts.memory_limit_bytes,
        accelerator=name or (accelerator.type if accelerator is not None else ""),
        rank=place.rank,
        world_size=place.world_size,
        local_world_size=place.local_world_size,
        kills_for_memory=host.kills_for_memory(),
        config={
            "cpu_budget": cpu_budget,
            **{key: value for key, value in settings.flat().items() if value is not None},
        },
    )
