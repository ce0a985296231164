"""Settings for how loaders are served, and for samples that kill their worker."""

from __future__ import annotations

from typing import Annotated, Literal

from stoker.core.settings import Option, Settings, choice, count, duration, memory
from stoker.feed.replay import RULE, is_replay

_RANDOM = "keep the program's random streams where they matter, or seed each sample by itself"
_STALL = "silence after which a data worker counts as stuck, such as 60s"
_REPLAY = "replay one sample alone, in the program, as named by an error message"


class FeedSettings(Settings, frozen=True, kw_only=True):
    """How loaders are served; None lets stoker choose the value."""

    worker_memory_bytes: Annotated[
        int | None, memory("private memory near which a data worker is replaced, such as 4GiB")
    ] = None
    slot_memory_bytes: Annotated[int | None, memory("memory of the slots of a loader, such as 2GiB")] = None
    random: Annotated[Literal["keep", "sample"], choice(_RANDOM)] = "keep"
    tier: Annotated[Literal["auto", "pinned"], choice("how loaders are served: chosen for each, or as torch would")] = (
        "auto"
    )


class FaultSettings(Settings, frozen=True, kw_only=True):
    """What happens when a data worker dies or hangs."""

    on_bad_sample: Annotated[
        Literal["raise", "skip", "replace"], choice("what to do with a sample that killed its data worker twice")
    ] = "raise"
    bad_sample_cap: Annotated[
        int,
        count("N", "most samples that may be skipped or replaced", least=0, rule="a whole number of at least 0"),
    ] = 16
    stall_timeout_s: Annotated[
        float,
        # Shorter silences are normal on a busy machine, where any process may wait that long for a core.
        duration(_STALL, "a time of at least `0.1s`, such as `60s`", least=0.1),
    ] = 60.0
    replay: Annotated[str | None, Option(form="SPEC", text=_REPLAY, rule=RULE, accepts=is_replay)] = None
