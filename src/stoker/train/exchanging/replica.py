# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch.distributed is typed in part)
"""One replicated module's exchange, from plain DDP to a plan that is tried and kept, or not.

It lives in DDP's public hook for communication. A *round* is one backward pass whose gradients are exchanged; DDP has
as many on all ranks, also where one has joined early. So all that all ranks must decide alike follows from the number
of the round, from headers that all of them read, or from what rank 0 tells at a round's end.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec.structs import replace
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.core.mishaps import line_of
from stoker.core.trials.alternating import Arm, CutTrial
from stoker.records.exchange import (
    POWER_RANK,
    AgreedExchange,
    ExchangeRun,
    LayerMethod,
    MeasuredExchange,
    ProbedLinks,
)
from stoker.train.exchanging import measuring, weights
from stoker.train.exchanging.compressed import HalvedSum, LowRankSum
from stoker.train.exchanging.factors import factored_layers
from stoker.train.exchanging.layout import GATHERED, BucketLayout, PlacedWeight, laid_out
from stoker.train.exchanging.mixed_round import MixedRound, RingReducer
from stoker.train.exchanging.own_rings import OwnRing
from stoker.train.exchanging.plain.active_ranks import ActiveRanks
from stoker.train.exchanging.plain.plain_sums import PlainSums
from stoker.train.exchanging.splits.plans import (
    ExchangePlanner,
    by_weight,
    gain_words,
    is_by_ring,
    ring_share,
    splits_of,
    unsplit,
    without_ring,
    without_splits,
    without_sums,
)
from stoker.train.exchanging.splits.replica_splits import ReplicaSplits
from stoker.train.exchanging.standing import LayerStanding, counts_of
from stoker.train.program import sharing
from stoker.train.program.lookouts import OwnLookout
from stoker.train.ring.watching.blame import RankFault

TIMED = 3
"""Rounds whose times count, after the first one: DDP orders its buckets again in that one."""
PROVED = 2
"""Rounds in which layers' gradients are compared with their form."""
_HASHED_EVERY = 64
_MEMORY_SHARE = 0.25
"""Share of the free memory that gathered factors may take."""
_MOST_GROWTH = 4
"""Times the rows that were measured, to which a layer's room may grow."""
_RELEASE_S = 0.02
"""In which the backend's threads release what timed sums: four switches of the interpreter, which may end next."""

ProgramHook = Callable[[Any, Any], Any]


class ReplicaExchange:
    """The state of the hook of one ``DistributedDataParallel``.

    Args:
        ddp: the module.
        planner: makes the plan.
        tell: called with one line for people, on rank 0.
        name: of the module, for people.
        tries: whether a plan is tried against plain DDP before it is kept.
        ring: sums by other means than the backend's; without it, own sockets where the plan names them.
        probes: whether links are probed before the plan.
    """

    def __init__(
        self, ddp: DistributedDataParallel, planner: ExchangePlanner, tell: Callable[[str], None], name: str,
        *, tries: bool = True, ring: RingReducer | None = None, probes: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.group: Any = ddp.process_group
        self.ranks, self.rank = dist.get_world_size(self.group), dist.get_rank(self.group)
        self.program_hook: tuple[ProgramHook, Any] | None = None
        """The program's own hook and its state, which this one gives way to."""
        self.rounds = 0
        self.agreed: AgreedExchange | None = None
        self.ring = ring
        self.splits: ReplicaSplits | None = None
        """What splits layers where a plan names that; None where nobody gave leave to it."""
        self._own_ring = OwnRing(self.group)
        self._lookout = OwnLookout(self.group)
        self._planner, self._tell, self._tries = planner, tell, tries
        self._probes = probes and ring is None
        model: nn.Module = ddp.module
        self._model = model
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self._exchanged: dict[str, nn.Parameter] = {}
        self._sparse: set[str] = set()
        """Those of them whose gradients are sparse: torch exchanges them, whatever the plan says."""
        self._unseen: Exception | None = None
        """Why the buckets could not be looked at."""
        self._layers = {layer.name: layer for _, layer in factored_layers(model)}
        self._tables = measuring.tables_of(model)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._proof = measuring.FormProof(self._layers, self._tables, self._draw)
        self._backward: measuring.BackwardClock | None = None
        self._measuring = True
        self._device = torch.device("cpu")
        self._every: list[MeasuredExchange] = []
        """What all ranks measured, on rank 0."""
        self._methods: dict[str, LayerMethod] = {}
        self._standings: dict[str, LayerStanding] = {}
        self._halves: dict[str, HalvedSum] = {}
        self._thin: dict[str, LowRankSum] = {}
        self._layouts: dict[tuple[int, ...], BucketLayout] = {}
        self._round: MixedRound | None = None
        self._trial: CutTrial | None = None
        self._gain: float | None = None
        self._is_on = False
        self._ended_s: float | None = None
        self._times: dict[bool, list[float]] = {False: [], True: []}
        self._computed: list[float] = []
        self._planned_at = 0
        self._plain_bytes = self._planned_bytes = 0.0
        self._round_bytes = 0.0
        self._repaired = 0
        self._notes: list[str] = []
        self._active = ActiveRanks(self.group)
        self._plain = PlainSums(self.group, self._active)
        self._compares, self._is_compared = True, False
        """Whether ranks shall have the same weights: that is so if they had when they were first compared."""
        for layer in self._layers.values():
            layer.install()

    def _draw(self, size: int, device: torch.device) -> torch.Tensor:
        generator = self._generators.get(device)
        if generator is None:  # never the program's own stream; on the device, so that nothing is copied there
            generator = self._generators[device] = torch.Generator(device).manual_seed(0x5706)
        return torch.randn(size, generator=generator, device=device)

    # What DDP calls

    def exchange(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Exchanges one bucket.

        Args:
            bucket: of DDP.

        Returns:
            The mean of the gradients of all ranks.
        """
        if self.program_hook is not None:
            hook, state = self.program_hook
            return hook(state, bucket)
        buffer: torch.Tensor = bucket.buffer()
        is_last = bool(bucket.is_last())
        if bucket.index() == 0:
            self._active.count(buffer.device)
        if self._measuring and self._unseen is None:
            try:
                self._look(bucket)
            except Exception as error:  # there will be no plan, on any rank
                self._unseen = error
        layout = self._layout(bucket) if self._is_on and not buffer.is_sparse else None
        if self._is_on and self._round is None:
            self._round = self._mixed_round()
        if layout is None or layout.is_whole:
            if not buffer.is_sparse:
                self._round_bytes += ring_share(self.ranks) * buffer.nbytes
            name = self._names.get(id(bucket.parameters()[0]), "")
            done = self._plain.start(buffer, name, is_timed=self._measuring)
        else:
            assert self._round is not None
            done = self._round.add(buffer, layout)
        if is_last:
            self._plain.settle(self.rounds, self._lost)
            self._end_round(buffer.device)
        return done

    # Before a plan

    def _look(self, bucket: Any) -> None:
        parameters: list[nn.Parameter] = bucket.parameters()
        is_sparse = bool(bucket.buffer().is_sparse)
        for parameter in parameters:
            name = self._names.get(id(parameter))
            if name is not None:
                self._exchanged[name] = parameter
                if is_sparse:
                    self._sparse.add(name)
        # A sparse gradient is a bucket by itself, and torch shows it as the buffer alone.
        if self.rounds <= TIMED or is_sparse:
            return
        for parameter, gradient in zip(parameters, bucket.gradients(), strict=True):
            name = self._names.get(id(parameter), "")
            if (name in self._layers or name in self._tables) and not gradient.is_sparse:
                try:
                    self._proof.look(name, gradient.reshape(gradient.shape[0], -1))
                    if self.splits is not None and name in self._tables:
                        self.splits.look(name, gradient)
                except Exception as error:
                    self._proof.why_not[name] = f"it could not be examined ({type(error).__name__})"

    def _end_round(self, device: torch.device) -> None:
        mixed, self._round = self._round, None
        if mixed is not None:
            self._end_mixed(mixed)
        now = time.perf_counter()
        seconds = now - self._ended_s if self._ended_s is not None and self.rounds else None
        is_split = self._is_split
        # What splits alone take is theirs.
        if seconds is not None and (self._is_on or not is_split):
            self._times[self._is_on].append(seconds)
            if self._measuring and self._ended_s is not None and self.rounds <= TIMED:
                # In further ones layers are looked at as well.
                self._computed.append(now - max(self._ended_s, self._plain.clock.ended_s))
            del self._times[self._is_on][:-1000]
        self._ended_s = now
        self.rounds += 1
        sent, self._round_bytes = self._round_bytes, 0.0
        if self._is_on:
            self._planned_bytes = sent
        elif not is_split:
            self._plain_bytes = sent
        if self._measuring:
            self._end_measured(device)
            return
        is_tried = self._trial is not None
        if self.splits is not None:
            self.splits.end_round(seconds, sent, self.rounds)
        if is_tried:
            self._end_tried(device, now)

    def _end_measured(self, device: torch.device) -> None:
        waits = self._plain.take_waits()
        if self._backward is not None:
            self._backward.end_pass()
        elif self.rounds == 1:
            self._backward = measuring.BackwardClock(self._exchanged)
        if self.splits is not None:
            self.splits.end_measured(proves=self.rounds == TIMED + 1)
        if self.rounds == TIMED + 1:
            self._capture(on=True)
        if self.rounds >= TIMED + PROVED + 1:
            for wait in waits:
                wait()
            self._measuring = False
            self._agree(device)
            self._ended_s = None

    def _agree(self, device: torch.device) -> None:
        """All ranks tell rank 0 what they measured, and get the same plan."""
        assert self._backward is not None
        self._device = device
        links = self._probed(device)
        # Collective, and so outside of what may fail on one rank alone.
        small = measuring.timed_sums(self.group, device)
        try:
            measured = replace(self._measured(device, small), links=links)
        except Exception as error:  # the others wait for this rank's word
            self._mishap("measuring of the exchange", error)
            measured = measuring.nothing(self.name, self.rank, self.ranks, device)
        self._backward.remove()
        self._backward = None
        if self.splits is not None:
            self.splits.forget()
        every = sharing.gather_bytes(msgspec.msgpack.encode(measured), self.group, device)
        if self.rank == 0:
            self._every = [msgspec.msgpack.decode(each, type=MeasuredExchange) for each in every]
        self._plan()

    def _plan(self) -> None:
        """Rank 0 plans, and all ranks begin what it says. Collective."""
        plan, device = b"", self._device
        if self.rank == 0:
            try:
                agreed = self._planner(self._every)
            except Exception as error:
                self._mishap("planning of the exchange", error)
                agreed = AgreedExchange(methods=[], note="no plan could be made")
            plan = msgspec.msgpack.encode(agreed)
        told = sharing.tell_bytes(plan, self.group, device)
        self.agreed = msgspec.msgpack.decode(told, type=AgreedExchange)
        self._planned_at = self.rounds
        if self.ring is None and is_by_ring(self.agreed) and device.type != "cpu":
            self.agreed = without_ring(self.agreed, "sockets carry tensors of CPUs alone")
            self.say(f"the backend makes all sums: sockets carry tensors of CPUs, and these are on {device}")
            self._own_ring.close()
        elif self.ring is None and is_by_ring(self.agreed):
            self._connect(device)
        else:
            self._own_ring.close()
        split = splits_of(self.agreed)
        if not split or self.splits is None:
            self._adopt(self.agreed)
            return
        self._capture(on=False)
        for path in split:
            if (layer := self._layers.get(f"{path}.weight")) is not None:
                layer.remove()
        if why := self.splits.begin(self.agreed, split, device):
            self.say(f"no layers are split: {why}")
            self.splits_are_out(dict.fromkeys(split, why))

    def splits_are_kept(self) -> None:
        """The layers that are split stay so; what else is planned is tried from now on."""
        assert self.agreed is not None
        self._adopt(without_splits(self.agreed))

    def splits_are_out(self, reasons: Mapping[str, str]) -> None:
        """Plans again without these splits. Collective."""
        self._every = [unsplit(each, reasons) for each in self._every]
        self._standings, self._thin, self._halves, self._trial = {}, {}, {}, None
        if self._is_on:
            self._turn(on=False)
        self._ended_s = None
        self._plan()

    def _probed(self, device: torch.device) -> ProbedLinks | None:
        """What the links can do, by sockets; the same on all ranks."""
        if not self._probes or self.ranks == 1 or device.type != "cpu":
            return None
        if why := self._own_ring.probe(device):
            self.say(f"planned without a probe of the links: {why}")
        return self._own_ring.links

    def _connect(self, device: torch.device) -> None:
        """Connects the ring that the plan names; where one rank can't, the backend makes these sums on all."""
        assert self.agreed is not None
        by_islands = any(each.method == "islands" for each in self.agreed.methods)
        why = self._own_ring.connect(device, by_islands=by_islands)
        self.ring = self._own_ring.exchange
        if why:
            self.agreed = without_ring(self.agreed, "there is no ring of sockets")
            self.say(f"the backend makes all sums, there is no ring of sockets: {why}")

    def _look_out(self) -> None:
        """Has a lost rank named where the backend's collectives carry the plan; own sockets do that themselves."""
        if self._own_ring.exchange is None and (why := self._lookout.connect()):
            self.say(f"a rank that is lost will have no name: {why}")

    def _lost(self) -> RankFault | None:
        ring = self._own_ring.exchange
        return self._lookout.ask() if ring is None else ring.ask()

    def _measured(self, device: torch.device, small: list[tuple[float, float]]) -> MeasuredExchange:
        assert self._backward is not None
        if self._unseen is not None:
            raise self._unseen
        dense = {name: each for name, each in self._exchanged.items() if name not in self._sparse}
        layers = measuring.measured_layers(self._model, dense, self._layers, self._tables, self._proof, self._backward)
        if self.splits is not None:
            hooks = [*self._backward.hooks, *(each.hook for each in self._layers.values() if each.hook is not None)]
            layers = self.splits.annotated(layers, {each.id for each in hooks})
        return MeasuredExchange(
            name=self.name, rank=self.rank, ranks=self.ranks, backend=str(dist.get_backend(self.group)),
            device=device.type, step_s=statistics.median(self._times[False] or [0.0]), layers=layers,
            computed_s=statistics.median(self._computed or [0.0]) if device.type == "cpu" else 0.0,
            sums=[*small, *self._plain.clock.sums()],
            products=measuring.timed_products(layers, self.ranks, device), byte_s=measuring.copied_byte_s(device),
            memory_bytes=measuring.free_bytes(device) * _MEMORY_SHARE / self.ranks,
        )  # fmt: skip

    # With a plan

    def _adopt(self, agreed: AgreedExchange) -> None:
        self._capture(on=False)
        self._methods = by_weight(agreed, self._exchanged)
        for each in agreed.methods:
            if each.weight in self._layers:
                self._layers[each.weight].install()
            if each.method in GATHERED:
                self._standings[each.weight] = LayerStanding(each.rows, each.rows * _MOST_GROWTH)
            elif each.method == "power":
                weight = self._exchanged[each.weight]
                self._thin[each.weight] = LowRankSum(each.weight, (weight.shape[0], weight[0].numel()), POWER_RANK)
        for name, layer in self._layers.items():
            if name not in self._standings:
                layer.remove()
        if not agreed.methods:
            return
        self._look_out()
        self._trial = CutTrial() if self._tries else None
        self._turn(on=True)

    def _turn(self, *, on: bool) -> None:
        self._is_on = on
        self._layouts.clear()
        self._capture(on=on)

    def _capture(self, *, on: bool) -> None:
        for name, layer in self._layers.items():
            standing = self._standings.get(name)
            wanted = on and (self._measuring or (standing is not None and not standing.left))
            layer.drop()
            layer.enabled = wanted
            layer.limit(standing.room if standing is not None else None)

    def _mixed_round(self) -> MixedRound:
        hashed = None
        if self._own_ring.exchange is not None:
            self._own_ring.exchange.step = self.rounds
        if self._compares and (self.rounds - self._planned_at) % _HASHED_EVERY == 0:
            # A rank that has joined is behind the others, and gets their weights at the end.
            hashed = 0 if self._active.has_joined else weights.hash_of(self._alike())
        return MixedRound(
            self.group, self._layers, self._standings, self._draw, ring=self.ring,
            islands=self._own_ring.islands, weights=hashed, scale=self._active.scale, step=self.rounds,
            halves=self._halves, thin=self._thin, ask=self._lost,
        )  # fmt: skip

    def _alike(self) -> list[nn.Parameter]:
        """Weights that all ranks have, and exchange."""
        split = self.splits.weights if self.splits is not None else ()
        return [each for each in self._exchanged.values() if id(each) not in split]

    def _layout(self, bucket: Any) -> BucketLayout:
        parameters: list[nn.Parameter] = bucket.parameters()
        key = tuple(map(id, parameters))
        found = self._layouts.get(key)
        if found is None:
            placed = [
                PlacedWeight(
                    name=self._names.get(id(parameter), ""), size=gradient.numel(),
                    shape=(gradient.shape[0], gradient.numel() // gradient.shape[0]) if gradient.numel() else (0, 0),
                    kind=gradient.dtype, is_plain=gradient.is_contiguous() and gradient.dim() > 1,
                )
                for parameter, gradient in zip(parameters, bucket.gradients(), strict=True)
            ]  # fmt: skip
            found = self._layouts[key] = laid_out(placed, self._now())
        return found

    def _now(self) -> dict[str, LayerMethod]:
        """The plan without layers that left it, with the rooms of today."""
        now: dict[str, LayerMethod] = {}
        for name, method in self._methods.items():
            standing = self._standings.get(name)
            if standing is None:
                now[name] = method
            elif not standing.left:
                now[name] = replace(method, rows=standing.room)
        return now

    def _end_mixed(self, mixed: MixedRound) -> None:
        before = {name: (each.room, each.left) for name, each in self._standings.items()}
        result = mixed.finish()
        self._round_bytes += (self.ranks - 1) * result.gathered_bytes + ring_share(self.ranks) * result.summed_bytes
        for name, each in self._standings.items():
            if before[name] == (each.room, each.left):
                continue
            self._layouts.clear()
            if name in self._layers:
                if each.left:
                    self._layers[name].remove()
                else:
                    self._layers[name].limit(each.room)
            if each.left:
                self.say(f"`{name}` goes by all-reduce from now on: {each.left}")
        if not result.weights or 0 in result.weights:
            return
        is_first, self._is_compared = not self._is_compared, True
        if len(set(result.weights)) == 1:
            return
        if is_first:
            self._compares = False
            self.say("the program gives ranks different weights, which stay so")
        else:
            weights.take_first(self._alike(), self.group)
            self._repaired += 1
            self.say("ranks had different weights; all have taken those of rank 0")

    def _end_tried(self, device: torch.device, now: float) -> None:
        """Rank 0 says which arm the next round is of, and how the trial ended: one small message a round."""
        trial = self._trial
        assert trial is not None
        if self.rank == 0:
            trial.add(Arm.ON if self._is_on else Arm.OFF, now)
        verdict = math.nan if trial.verdict is None else trial.verdict
        arm, gain = sharing.tell_numbers([float(trial.arm is Arm.ON), verdict], self.group, device)
        if not math.isnan(gain):
            if gain < CutTrial.LEAST_GAIN and self._try_without_ring(gain):
                return
            self._trial, self._gain = None, gain
            self._turn(on=gain >= CutTrial.LEAST_GAIN)
            if self._is_on:
                self.say(f"the planned exchange saves {100 * gain:.0f} % of a step, and stays")
            else:
                for layer in self._layers.values():
                    layer.remove()
                self._own_ring.close()
                self._lookout.close()
                self.agreed = without_sums(self.agreed) if self.agreed is not None and self._is_split else self.agreed
                self.say(f"with the planned exchange a step {gain_words(gain)}: back to torch's")
        elif bool(arm) != self._is_on:
            self._turn(on=bool(arm))

    def _try_without_ring(self, gain: float) -> bool:
        """Tries what else a plan has that lost with a ring: its sums are the ones that other ranks' CPUs slow down."""
        assert self.agreed is not None
        rest = without_ring(self.agreed, "")
        if len(rest.methods) == len(self.agreed.methods) or not without_splits(rest).methods:
            return False
        self.agreed = rest
        self._methods = by_weight(without_splits(rest), self._exchanged)
        self._own_ring.close()
        self.ring = None
        self._look_out()
        self._times[True].clear()
        self.say(f"with own sockets a step {gain_words(gain)}; the rest of the plan is tried without them")
        self._trial = CutTrial()
        self._turn(on=True)
        return True

    def _mishap(self, what: str, error: Exception) -> None:
        self._tell(f"{self.name}: {line_of(what, error, 'gradients are exchanged as torch does it')}")

    def say(self, text: str) -> None:
        """A line for people about this module, shown by rank 0."""
        self._notes.append(line := f"{self.name}: {text}")
        if self.rank == 0:
            self._tell(line)

    # From outside

    def divide_by_active(self, ddp: DistributedDataParallel) -> None:
        """Until `join()` ends the mean is over the ranks that have not joined yet."""
        self._active.divide_by_active(ddp)

    def join_begins(self) -> None:
        """Makes split layers whole; else ranks that have joined send no rows, and take part in each exchange."""
        if self.splits is not None:
            self.splits.join_begins()

    def joined(self, *, is_over: bool) -> None:
        """This rank has no more batches, and answers until the others are through, too."""
        self._active.joined(is_over=is_over)
        if is_over:
            # Weights are equal now, but momentum is not: ranks may go apart, as by torch's exchange.
            self._compares = False

    def give_way(self, hook: ProgramHook, state: Any) -> None:
        """The program registers its hook, which is called instead from now on."""
        self.say("the program registers its own hook for gradients, which stays: nothing else is planned")
        self.program_hook = hook, state
        self.close()

    def close(self) -> None:
        """Takes back all changes of the module; gradients go by all-reduce."""
        if self._measuring and self.rounds:
            time.sleep(_RELEASE_S)
        self._measuring = self._is_on = False
        self._trial = None
        if self._backward is not None:
            self._backward.remove()
            self._backward = None
        for layer in self._layers.values():
            layer.remove()
        for each in self._thin.values():
            each.forget()
        self._own_ring.close()
        self._lookout.close()
        if self.splits is not None:
            self.splits.close()

    @property
    def _is_split(self) -> bool:
        return self.splits is not None and self.splits.is_on

    def record(self) -> ExchangeRun | None:
        """What was chosen and measured; None before the plan."""
        if self.agreed is None:
            return None
        times = {key: statistics.median(found) if found else 0.0 for key, found in self._times.items()}
        found = ExchangeRun(
            name=self.name, ranks=self.ranks, agreed=self.agreed, step=self._planned_at, steps=self.rounds,
            gain=self._gain, kept=self._is_on, plain_step_s=times[False], planned_step_s=times[True],
            plain_bytes=self._plain_bytes, planned_bytes=self._planned_bytes, repaired=self._repaired,
            counts=counts_of(self._standings, self._methods, {"power": self._thin, "half": self._halves}),
            notes=list(self._notes),
        )  # fmt: skip
        return found if self.splits is None else self.splits.recorded(found)
