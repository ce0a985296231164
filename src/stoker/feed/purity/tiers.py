# pyright: reportUnknownArgumentType=false
# (loaders and datasets are the user's)
"""Which tier serves a loader, and why, in words.

There are two steps: the loader's declaration decides whether it is a candidate for the elastic tier; a candidate is
then probed. Nothing is guessed: unless samples are shown to be the same elsewhere, a loader stays as declared.
"""

from __future__ import annotations

import contextvars
import inspect
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils.data import IterDataPipe, MapDataPipe

from stoker.core.units import format_count
from stoker.feed.order.sampling import draws_lazily, num_free
from stoker.feed.program import Program, Tier
from stoker.feed.purity.objects import Survey, survey
from stoker.feed.purity.probe import Evidence, compare


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A tier and the reason for it, in words."""

    tier: Tier
    reason: str
    evidence: tuple[str, ...] = ()
    candidate: bool = False
    """The elastic tier is only taken once the probe agrees."""


def choose(program: Program, index_sampler: Any, *, wish: Literal["auto", "pinned"]) -> Choice:
    """The tier that a loader's declaration allows.

    Args:
        program: what its workers would run.
        index_sampler: its batch sampler (or sampler).
        wish: ``pinned`` to go no further than what the loader declares.
    """
    if isinstance(program.dataset, (IterDataPipe, MapDataPipe)):
        return Choice(tier=Tier.STOCK, reason="its dataset is a DataPipe, whose sharding is torch's own")
    if program.declared_workers == 0:
        return _without_workers(program, index_sampler, wish)
    workers = format_count(program.declared_workers, "worker")
    if program.is_iterable:
        shards = format_count(program.declared_workers, "declared worker")
        return Choice(
            tier=Tier.PINNED,
            reason=f"an iterable dataset has one shard for each of its {shards}",
            evidence=(
                f"shards are read by {type(program.dataset).__name__}.__iter__{_site(program.dataset, '__iter__')}",
            ),
        )
    if wish != "auto":
        return Choice(tier=Tier.PINNED, reason=f"asked for by `--tier {wish}`; {workers} as declared")
    shared = reuse_survey(program).shared
    if shared:
        return Choice(
            tier=Tier.PINNED,
            reason=f"{shared[0]}, so every sample is made once only, by {workers} as declared",
        )
    lazy = draws_lazily(index_sampler) if num_free(index_sampler) == 0 else ""
    evidence = (f"order is drawn no further ahead than torch draws it: {lazy}",) if lazy else ()
    return Choice(
        tier=Tier.ELASTIC,
        candidate=True,
        reason="samples are the same in any order, process and repetition",
        evidence=evidence,
    )


def _without_workers(program: Program, index_sampler: Any, wish: str) -> Choice:
    def stay(reason: str, *evidence: str) -> Choice:
        return Choice(tier=Tier.PROCESS, reason=reason, evidence=evidence)

    if wish != "auto":
        return stay(f"declares no workers, and `--tier {wish}` moves nothing beyond what is declared")
    if program.is_iterable:
        return stay("an iterable dataset without declared workers is one stream of the training process")
    lazy = draws_lazily(index_sampler)
    if lazy:
        return stay(f"declares no workers, and {lazy}")
    found = watch_survey(program)
    if found.obstacles or found.fingerprint is None:
        why = found.obstacles[0] if found.obstacles else "its objects can't be watched"
        return stay(f"declares no workers, and {why}", "declare num_workers=1 or more to let data workers make it")
    return Choice(
        tier=Tier.ELASTIC,
        candidate=True,
        reason="declares no workers, but samples are the same elsewhere and nothing they refer to changes",
        evidence=(f"{found.num_objects} objects are watched for changes",),
    )


def roots_of(program: Program) -> list[tuple[str, Any]]:
    """What a program's items depend on, for ``objects.survey``."""
    return [
        ("dataset", program.dataset),
        ("collate_fn", program.collate_fn),
        ("worker_init_fn", program.worker_init_fn),
    ]


def watch_survey(program: Program, *, draws: bool = True) -> Survey:
    """A survey small enough to be repeated while a loader without declared workers is in use.

    Args:
        program: what it would run.
        draws: whether drawing from a random generator that the dataset holds counts as a change.
    """
    return survey(roots_of(program), max_objects=5_000, max_bytes=1 << 20, draws=draws)


def reuse_survey(program: Program) -> Survey:
    """A survey of what new workers would hold."""
    return survey(roots_of(program), max_objects=20_000, max_bytes=8 << 20)


def generators_of(program: Program) -> tuple[Any, ...]:
    """Random generators that the dataset and its functions hold, always in the same order.

    Empty if the search fails: samples that draw from such a generator then differ when they are compared.
    """
    try:
        return tuple(generator for _, generator in reuse_survey(program).generators)
    except Exception:
        return ()


def reuse_fingerprint(program: Program, known: bytes = b"") -> bytes | None:
    """Equal in the program and in a process forked from it as long as nothing that items depend on has changed.

    Given a ``known`` one to compare with, arrays are read only if everything else is equal.
    """
    # Above these sizes (10 ms each), starting new processes is faster than finding out that the old ones will do.
    found = survey(roots_of(program), max_objects=5_000, max_bytes=4 << 20, known=known).fingerprint
    return None if found is None else found + repr(ambient_state()).encode()


def state_fingerprint(program: Program) -> bytes:
    """What items depend on and a pickle of the program does not hold: the state of the modules that it refers to.

    Equal in the processes of a run's ranks for most programs; another one after a change, such as a function or an
    attribute of a class that is replaced. Of a dataset that is too large to walk, that of its code alone.
    """
    code: list[tuple[str, Any]] = [
        ("dataset", type(program.dataset)),
        ("collate_fn", program.collate_fn),
        ("worker_init_fn", program.worker_init_fn),
    ]
    whole = survey(roots_of(program), across=True).fingerprint
    return whole or survey(code, across=True).fingerprint or b""


def ambient_state() -> tuple[object, ...]:
    """Settings of the process and the thread, which code may depend on without referring to them."""
    variables = tuple((variable.name, id(value)) for variable, value in contextvars.copy_context().items())
    environment = getattr(os.environ, "_data", os.environ)  # as bytes: decoding takes ten times as long as comparing
    torchs = (torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled())
    return torchs, os.getcwd(), hash(frozenset(environment.items())), variables


def judge(choice: Choice, program: Program, found: tuple[Evidence, Evidence] | str, *, random: str) -> Choice:
    """The settled tier of a candidate.

    Args:
        choice: the candidate.
        program: what its workers run.
        found: evidence of both sides of the probe, or why it could not be finished, as half a sentence.
        random: ``sample`` lets loaders without declared workers leave the main random stream.
    """
    if isinstance(found, str):
        return impure(program, found)
    why = compare(*found)
    drew = found[0].drew or found[1].drew
    if not why and drew and program.declared_workers == 0 and random == "keep":
        why = "its samples draw from the main random stream (`--random sample` gives each sample a seed instead)"
    if not why and drew and program.worker_init_fn is not None and random == "keep":
        why = (
            "its samples draw random numbers under what `worker_init_fn` sets in each worker (`--random sample` gives "
            "each sample a seed instead)"
        )
    if why:
        return impure(program, f"{why}{_own_generator(program)}" if random == "keep" else why)
    if not drew:
        return Choice(tier=Tier.ELASTIC, reason=choice.reason, evidence=choice.evidence)
    notes = ("random transforms draw from a seed of each sample: the same for any number of workers",)
    reason = f"{choice.reason}, each with random numbers of its own seed"
    if program.declared_workers and random == "keep":
        reason += " (`--tier pinned`: torch's numbers)"
    return Choice(tier=Tier.ELASTIC, reason=reason, evidence=(*choice.evidence, *notes))


def _own_generator(program: Program) -> str:
    """Names a random generator that samples may draw from, if there is one."""
    held = reuse_survey(program).generators
    if not held:
        return ""
    return f"; `{held[0][0]}` draws random numbers (`--random sample` seeds it for each sample)"


def left_to_torch(why: str) -> Choice:
    """The tier of a loader that torch serves."""
    return Choice(tier=Tier.STOCK, reason=why)


def as_declared(program: Program, why: str) -> Choice:
    """The tier of a loader about which only its declaration is known."""
    return Choice(tier=Tier.PINNED if program.declared_workers else Tier.PROCESS, reason=why)


def on_trial() -> Choice:
    """The tier of a candidate without declared workers while its first batches are made in the training process."""
    return Choice(
        tier=Tier.PROCESS,
        reason="declares no workers, and its iterations ended before it was known whether moving it pays",
    )


def on_probe() -> Choice:
    """The tier of a candidate with declared workers until two of its batches were compared."""
    return Choice(tier=Tier.ELASTIC, reason="its iterations ended at the first batch, before samples were compared")


def impure(program: Program, why: str) -> Choice:
    """The tier of a candidate that the probe refused."""
    site = _site(program.dataset, "__getitem__")
    culprit = f"samples are made by {type(program.dataset).__name__}.__getitem__{site}"
    if program.declared_workers == 0:
        return Choice(tier=Tier.PROCESS, reason=f"declares no workers, and {why}", evidence=(culprit,))
    workers = format_count(program.declared_workers, "worker")
    return Choice(
        tier=Tier.PINNED,
        reason=f"{why}; so {workers} with torch's own assignment and seeds",
        evidence=(culprit,),
    )


def _site(dataset: Any, method: str) -> str:
    function = getattr(type(dataset), method, None)
    try:
        filename = inspect.getsourcefile(function)  # type: ignore[arg-type]
        line = inspect.getsourcelines(function)[1]  # type: ignore[arg-type]
    except (TypeError, OSError):
        return ""
    return f" ({filename}:{line})" if filename else ""
