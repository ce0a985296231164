"""A ``DistributedDataParallel`` made with what its ranks share: nothing, states, weights as well, or layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.records.fitting import FitMeasure, MeasureKind, ModelCall
from stoker.train.sharding.marks import mark, unmark
from stoker.train.sharding.refusing import check_states, refuse_together
from stoker.train.sharding.states import shard_states

Construct = Callable[..., None]
Refused = Callable[[MeasureKind, str], object]


class RankSharing:
    """What ranks share of the replicated modules of one process.

    Args:
        refused: called with a kind of measure and why it is not in force for a part of a program.
    """

    def __init__(self, refused: Refused) -> None:
        self._refused = refused
        self._closers: list[Callable[[], None]] = []
        self.kinds: list[MeasureKind] = []
        """Measures that are in force."""

    def construct(
        self, measure: FitMeasure | None, original: Construct, ddp: DistributedDataParallel, module: nn.Module,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        """What the constructor of ``DistributedDataParallel`` does, with what a measure shares. Collective.

        Args:
            measure: ``zero1``, ``fsdp2`` or ``stages``; None for DDP as it is.
            original: torch's constructor.
            ddp: the object that is constructed.
            module: its module.
            options: the constructor's other arguments, by name.

        Raises:
            ValueError: a rank can't share it; on all ranks, and nothing is changed.
        """
        if measure is None:
            original(ddp, module, **options)
            return
        # What else acts on replicas sees the module while it is constructed.
        mark(module)
        try:
            if measure.kind == "fsdp2":
                self._share_weights(measure, original, ddp, module, options)
            elif measure.kind == "stages":
                self._share_layers(measure, original, ddp, module, options)
            else:
                self._share_states(original, ddp, module, options)
        except ValueError:
            unmark(module)
            raise

    def _share_weights(
        self, measure: FitMeasure, original: Construct, ddp: DistributedDataParallel, module: nn.Module,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        # Imported here: it takes torch a second.
        from stoker.train.sharding.weights import construct_sharded

        freed = [path for path in measure.paths if path not in measure.kept]
        shards = construct_sharded(
            original, ddp, module, options, units=measure.paths, reshard=freed, keeps_fetched=False
        )
        self._closers.append(shards.close)
        self.kinds.append("fsdp2")

    def _share_layers(
        self, measure: FitMeasure, original: Construct, ddp: DistributedDataParallel, module: nn.Module,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        # Imported here: few programs have stages.
        from stoker.train.staging.calling import construct_staged
        from stoker.train.staging.examples import casting, example_of

        call = measure.call or ModelCall()
        stages = construct_staged(
            original, ddp, module, options, lambda device: example_of(call, device), cuts=measure.paths,
            casting=lambda device: casting(call, device),
        )  # fmt: skip
        self._closers.append(stages.close)
        self.kinds.append("stages")

    def _share_states(
        self, original: Construct, ddp: DistributedDataParallel, module: nn.Module, options: dict[str, Any]
    ) -> None:
        trouble = ""
        try:
            check_states(module)
        except ValueError as error:
            trouble = str(error)
        refuse_together(trouble, options.get("process_group"))
        original(ddp, module, **options)
        try:
            shares = shard_states(ddp, refused=lambda reason: self._refused("zero1", reason))
        except Exception as error:
            reraise_from_handler(error)
            self._refused("zero1", line_of("fit", error, "optimizer states stay whole"))
            return
        self._closers.append(shares.close)
        self.kinds.append("zero1")

    def close(self) -> None:
        """Serves no more; what is in shares stays so. Of this rank alone."""
        while self._closers:
            self._closers.pop()()
