"""From a rank's record to parts, and from parts to a verdict with its gain."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stoker.cli.main import COMMANDS
from stoker.core.errors import RunFolderError
from stoker.perf.catalogue import catalogue, gpu_named
from stoker.perf.diagnosis.breakdown import break_down, without_overhead
from stoker.perf.diagnosis.exchanged import spared_exchange
from stoker.perf.diagnosis.gains import gain_of, input_bounds
from stoker.perf.diagnosis.residual import find_residual, locate
from stoker.perf.diagnosis.rules import INPUT_LEVELS, Context, judge, level
from stoker.perf.diagnosis.stragglers import find_stragglers
from stoker.perf.prediction.anchor import Anchor
from stoker.records.profile import (
    LoaderFacts,
    ModuleTime,
    OperatorTime,
    Predicted,
    Profile,
    RankRecord,
    Usage,
    Verdict,
    write_record,
)
from stoker.run.profiling.merge_ranks import assemble
from stoker.ui.profile_text import render_profile
from stoker.ui.report_text import Style
from tests.perf.planning.toys import features
from tests.profiling.records import record, sampled


def profile_of(*records: RankRecord) -> Profile:
    found = assemble(records, run_id="r", program=["train.py", "--lr", "0.1"], cwd="/", started_unix_s=0.0)
    assert found is not None
    return found


class TestBreakdown:
    def test_what_sampling_adds_comes_off_the_host(self) -> None:
        found = break_down(record(input=0.1, compute=0.5, host=0.2, optimizer=0.1, slower=0.15))
        assert found is not None
        assert found.seconds["compute"] == pytest.approx(0.5)
        assert found.seconds["host"] == pytest.approx(0.2)

    def test_more_than_the_host_has_is_spread(self) -> None:
        seconds = {"compute": 2.0, "memory": 2.0, "host": 1.0}
        assert without_overhead(seconds, 2.0, most_s=5.0) == pytest.approx({"compute": 1, "memory": 1, "host": 0})
        assert without_overhead(seconds, 2.5, most_s=0.0) == pytest.approx({"compute": 1, "memory": 1, "host": 0.5})

    def test_operations_and_modules_sum_to_no_more_than_their_part(self) -> None:
        """Sampled steps are slower, and two streams compute at once: both were shown as they were sampled."""
        slow = record(input=0.1, compute=0.4, memory=0.2, optimizer=0.1, slower=0.5)
        slow.operators = [
            OperatorTime(name=name, label=label, seconds=seconds, calls=1)
            for name, label, seconds in (
                ("aten::mm", "compute", 0.5), ("aten::bmm", "compute", 0.3), ("aten::add", "memory", 0.1),
                ("aten::_fused_adam_", "optimizer", 0.2),
            )
        ]  # fmt: skip
        slow.modules = [
            ModuleTime(path="a", compute_s=0.5, memory_s=0.1),
            ModuleTime(path="b", compute_s=0.3, memory_s=0),
        ]
        found = profile_of(slow)
        for label in ("compute", "memory", "optimizer"):
            summed = sum(each.seconds for each in found.operators if each.label == label)
            assert 0 < summed <= found.parts[label] * (1 + 1e-9)
        assert sum(each.seconds for each in found.operators) <= found.seconds
        assert sum(each.compute_s for each in found.modules) == pytest.approx(found.parts["compute"])
        assert found.operators[0].seconds == pytest.approx(found.parts["compute"] * 5 / 8)

    def test_without_samples_the_middle_is_not_divided(self) -> None:
        short = record(input=0.1, compute=0.5, optimizer=0.1)
        short.samples = []
        found = break_down(short)
        assert found is not None
        assert found.seconds["other"] == pytest.approx(0.5)
        assert found.seconds["compute"] == 0

    @given(
        st.fixed_dictionaries(
            {name: st.floats(0, 1) for name in ("input", "compute", "memory", "host", "optimizer", "other")}
        ),
        st.floats(0, 2),
    )
    def test_parts_sum_to_the_step(self, seconds: dict[str, float], slower: float) -> None:
        if sum(seconds.values()) < 1e-3:
            return
        found = break_down(record(slower=slower, **seconds))
        assert found is not None
        assert sum(found.parts().values()) == pytest.approx(found.pace.seconds)
        assert min(found.seconds.values()) >= 0


class TestVerdict:
    @pytest.mark.parametrize(
        ("seconds", "kind", "severity"),
        [
            ({"input": 0.5, "compute": 0.5}, "INPUT-BOUND", "high"),
            ({"input": 0.1, "compute": 0.9}, "INPUT-BOUND", "moderate"),
            ({"input": 0.04, "compute": 0.7, "memory": 0.26}, "COMPUTE-BOUND", ""),
            ({"compute": 0.3, "memory": 0.7}, "MEMORY-BOUND", ""),
            ({"compute": 0.3, "memory": 0.2, "optimizer": 0.5}, "MEMORY-BOUND", ""),
            ({"compute": 0.5, "host": 0.5}, "HOST-BOUND", "high"),
            ({"compute": 0.5, "other": 0.5}, "HOST-BOUND", "high"),
            ({"compute": 0.9, "host": 0.1}, "COMPUTE-BOUND", ""),
            ({"compute": 0.6, "communication": 0.4}, "COMMUNICATION-BOUND", "high"),
            ({"compute": 0.92, "communication": 0.08}, "COMMUNICATION-BOUND", "moderate"),
            ({"input": 0.15, "compute": 0.55, "host": 0.3}, "HOST-BOUND", "high"),
            ({"input": 0.4, "compute": 0.3, "host": 0.3}, "INPUT-BOUND", "high"),
        ],
    )
    def test_kinds(self, seconds: dict[str, float], kind: str, severity: str) -> None:
        verdict = judge(profile_of(record(**seconds)), Context())
        assert (verdict.kind, verdict.severity) == (kind, severity)
        assert verdict.text
        assert verdict.action.command

    @given(
        st.fixed_dictionaries(
            {n: st.floats(0, 1) for n in ("input", "compute", "memory", "host", "communication", "optimizer", "other")}
        )
    )
    def test_only_commands_that_exist_and_gains_that_can_be(self, seconds: dict[str, float]) -> None:
        if sum(seconds.values()) < 1e-3:
            return
        found = profile_of(record(**seconds))
        context = Context(commands=frozenset(command.name for command in COMMANDS), price_per_hour=2.0)
        verdict = judge(found, context)
        words = shlex.split(verdict.action.command)
        assert words[0] == "stoker"
        assert words[1] in context.commands
        gain = verdict.action.gain
        if gain is None:
            assert verdict.action.no_gain
        else:
            assert 0 <= gain.low <= gain.seconds <= gain.high <= found.seconds * (1 + 1e-9)
            assert gain.saved_per_hour is not None
            assert 0 <= gain.saved_frac_low <= gain.saved_frac <= gain.saved_frac_high <= 1
            assert 0 <= gain.saved_per_hour <= 2.0
        assert render_profile(found, Style(unicode=False)).isascii()

    def test_input_levels_are_xprofs(self) -> None:
        assert [level(share, INPUT_LEVELS) for share in (0.049, 0.051, 0.199, 0.201)] == [
            "", "moderate", "moderate", "high",
        ]  # fmt: skip

    def test_too_short_to_divide(self) -> None:
        short = record(input=0.01, compute=0.5)
        short.samples = []
        assert judge(profile_of(short), Context()).kind == "UNKNOWN"


class TestGains:
    @given(
        now=st.floats(0.01, 10), share=st.floats(0, 0.99), cores=st.floats(1, 64), making=st.floats(0, 10),
        training=st.floats(0, 10), workers=st.integers(0, 8),
    )  # fmt: skip
    def test_no_more_than_the_wait_is_gained(
        self, now: float, share: float, cores: float, making: float, training: float, workers: int
    ) -> None:
        usage = Usage(process_s=training, children_s=making)
        best, worst = input_bounds(
            now, share * now, min(making, now), usage, LoaderFacts(workers=workers), cores=cores, threads=2
        )
        assert (1 - share) * now * (1 - 1e-9) <= best <= worst <= now

    def test_more_cores_never_gain_less(self) -> None:
        usage = Usage(process_s=0.1, children_s=0.9)
        bests = [
            input_bounds(1.0, 0.8, 0.0, usage, LoaderFacts(workers=1), cores=cores, threads=1)[0]
            for cores in (1, 2, 4, 8)
        ]
        assert bests == sorted(bests, reverse=True)
        assert bests[0] == 1.0
        assert bests[-1] == pytest.approx(0.2)

    def test_cores_that_others_hold_are_not_promised(self) -> None:
        """3.46 to 3.64 times as fast was promised while other processes held both cores."""

        def bounds(**others: float) -> tuple[float, float]:
            usage = Usage(process_s=0.06, children_s=0.0, **others)
            return input_bounds(0.2, 0.145, 0.01, usage, LoaderFacts(workers=0), cores=2, threads=1)

        alone, full = bounds(), bounds(others_s=0.4, delayed_s=0.03)
        assert alone[1] / alone[0] < 1.2
        assert alone[0] < full[0] < full[1] == 0.2, "nothing at worst"
        assert bounds(others_s=0.02) == alone, "what a machine does by itself"
        half = bounds(others_s=0.2)
        assert alone[1] <= half[1] <= full[1]
        held = record(input=0.15, compute=0.05)
        held.usage, held.cores = Usage(process_s=0.06, others_s=0.38), 2.0
        verdict = judge(profile_of(held), Context())
        assert any("other processes hold 1.9 of the cores" in line for line in verdict.evidence)
        assert verdict.action.gain is None or verdict.action.gain.saved_frac_low == 0

    def test_an_optimizer_is_fused_by_operations_as_well_as_bytes(self) -> None:
        """On a CPU 1.0 to 1.97 times was predicted, and 2.2 to 3.7 reached."""
        slow = record(compute=0.1, memory=0.05, optimizer=0.85)
        adam = features(8).operations[1]
        calls = {"add": 2, "mul": 2, "lerp": 1, "addcmul": 1, "sqrt": 1, "div": 1, "addcdiv": 1}
        plain = tuple(
            structs.replace(adam, name=name, count=16 * each, eager_bytes=each * 9.3e6) for name, each in calls.items()
        )
        traced = structs.replace(features(8), operations=(features(8).operations[0], *plain))
        gain = judge(profile_of(slow), Context(features=traced)).action.gain
        assert gain is not None
        assert 1 / (1 - gain.saved_frac_low) == pytest.approx(1 / (0.15 + 0.85 / 3), rel=0.05)
        assert 1 / (1 - gain.saved_frac_high) == pytest.approx(1 / (0.15 + 0.85 / 9), rel=0.05)
        fused = structs.replace(traced, operations=(features(8).operations[0], structs.replace(adam, count=1)))
        again = judge(profile_of(slow), Context(features=fused)).action.gain
        assert again is not None
        assert again.saved_frac_low == 0

    def test_money(self) -> None:
        gain = gain_of(2.0, 1.0, 1.5, "because", 3.0)
        assert (gain.saved_per_hour_low, gain.saved_per_hour, gain.saved_per_hour_high) == (0.75, 1.125, 1.5)


class TestPlannedExchange:
    """What `--comm auto` is advised for, and what it is said to gain."""

    def verdict(self, batch_size: int) -> Verdict:
        ranks = [record(rank=rank, world_size=2, compute=0.06, communication=0.4) for rank in range(2)]
        return judge(profile_of(*ranks), Context(features=features(batch_size)))

    def test_is_advised_where_layers_have_smaller_forms(self) -> None:
        """1000 x 1000 weights, 8 rows, 2 ranks: 64 kB instead of 4 MB, and a joint product of twice the rank's rows."""
        action = self.verdict(8).action
        assert action.command == "stoker run --comm auto train.py --lr 0.1"
        assert action.gain is not None
        assert "1 layer spare 98.4 % of the bytes" in action.gain.basis
        found = spared_exchange(features(8), 2, exposed_s=0.4, compute_s=0.06)
        assert found.seconds == pytest.approx(0.984 * 0.4 - 2 * 0.06)

    def test_is_not_advised_where_factors_are_larger_or_the_product_takes_longer(self) -> None:
        assert "no_sync" in self.verdict(2000).action.text
        assert "no_sync" in judge(profile_of(record(compute=0.06, communication=0.4)), Context()).action.text
        assert spared_exchange(features(8), 2, exposed_s=0.1, compute_s=0.6).layers == 0

    @given(st.integers(1, 3000), st.integers(2, 64), st.floats(0, 1), st.floats(0, 1))
    def test_spares_no_more_than_there_is(self, rows: int, ranks: int, exposed_s: float, compute_s: float) -> None:
        found = spared_exchange(features(rows), ranks, exposed_s, compute_s)
        assert 0 <= found.bytes_frac < 1
        assert 0 <= found.seconds <= exposed_s * found.bytes_frac + 1e-12


class TestStragglers:
    def two(self, slow_s: float) -> list[RankRecord]:
        return [
            record(rank=0, world_size=2, compute=0.1, communication=slow_s),
            record(rank=1, world_size=2, compute=0.1, host=slow_s),
        ]

    def test_the_slow_rank_is_named(self) -> None:
        ranks = self.two(0.3)
        found = find_stragglers(ranks)
        assert found is not None
        assert found.rank == 1
        assert found.ratio == pytest.approx(0.4 / 0.25)
        assert found.part == "host"
        assert found.excess_s == pytest.approx(0.3)
        verdict = judge(profile_of(*ranks), Context())
        assert verdict.kind == "STRAGGLER"
        assert "rank 1" in verdict.text
        assert verdict.action.gain is not None
        assert verdict.action.gain.seconds == pytest.approx(0.1)

    def test_equal_ranks_do_not_straggle(self) -> None:
        ranks = [record(rank=k, world_size=2, compute=0.1, communication=0.1) for k in range(2)]
        assert judge(profile_of(*ranks), Context()).kind == "COMMUNICATION-BOUND"

    def test_where_exchange_itself_takes_longer_it_is_not_the_straggler(self) -> None:
        ranks = self.two(0.1)
        for each in ranks:
            each.samples = [
                sampled(s.number, **{**s.seconds, "communication": s.seconds["communication"] + 0.5})
                for s in each.samples
            ]
        assert judge(profile_of(*ranks), Context()).kind == "COMMUNICATION-BOUND"

    def test_without_steps_in_common_nothing_is_said(self) -> None:
        ranks = self.two(0.3)
        ranks[1].samples = [sampled(99, compute=1.0)]
        assert find_stragglers(ranks) is None
        assert find_stragglers(ranks[:1]) is None

    def test_a_missing_rank_is_mentioned(self) -> None:
        assert any("1 of 2 ranks" in note for note in profile_of(self.two(0.1)[0]).notes)


class TestResidual:
    predicted = Predicted(
        seconds=1.0, low=0.5, high=2.0, tier="calibrated", parts={"compute": 0.4, "memory": 0.6}, basis="a test"
    )

    def test_it_names_part_and_module(self) -> None:
        modules = [
            ModuleTime(path="layer1.0", compute_s=0.3, memory_s=0.2),
            ModuleTime(path="layer4.0.bn1", compute_s=0.0, memory_s=0.4),
            ModuleTime(path="layer4.1.bn1", compute_s=0.0, memory_s=0.4),
        ]  # fmt: skip
        expected = {"compute": {"layer1.0": 1.0}, "memory": {"layer1.0": 5.0, "layer4.0.bn1": 1.0, "layer4.1.bn1": 1.0}}
        found = find_residual({"compute": 0.3, "memory": 1.0}, self.predicted, modules, expected)
        assert (found.part, found.module) == ("memory", "layer4")
        assert found.text == "predicted memory 60 %, measured 77 %: the gap is in memory-bound operations of layer4"

    def test_equal_shares_agree_whatever_the_scale(self) -> None:
        assert find_residual({"compute": 4.0, "memory": 6.0, "input": 9.0}, self.predicted, [], {}).part == ""

    def test_a_gap_that_is_spread_names_the_whole(self) -> None:
        assert locate({"a": 0.5, "b": 0.5}, 1.0) == ""
        assert locate({"a.x": 0.5, "a.y": 0.5, "b": 0.0}, 1.0) == "a"
        assert locate({"a.x": 0.9, "a.y": 0.1}, 1.0) == "a.x"
        assert locate({"a": -0.5, "b": 0.1}, -0.4) == "a"
        assert locate({}, 0.1) == ""


class TestFiles:
    def test_an_anchor_is_what_was_measured(self, tmp_path: Path) -> None:
        found = profile_of(record(input=0.1, compute=0.4))
        write_record(tmp_path / "profile.json", found)
        anchor = Anchor.from_run(tmp_path)
        assert (anchor.gpu, anchor.gpus, anchor.batch_size) == ("cpu", 1, 8)
        assert anchor.seconds == pytest.approx(0.5)
        assert anchor.cpu_seconds_per_sample == pytest.approx(0.05 / 8)
        assert Anchor.from_run(tmp_path / "profile.json") == anchor

    def test_exchange_that_no_sample_has_timed_is_not_taken_for_none(self, tmp_path: Path) -> None:
        short = [record(rank=rank, world_size=2, compute=0.4, communication=0.1) for rank in (0, 1)]
        write_record(tmp_path / "profile.json", profile_of(*short))
        assert Anchor.from_run(tmp_path).own_s == pytest.approx(0.4)
        for each in short:
            each.samples = []
        write_record(tmp_path / "profile.json", profile_of(*short))
        assert Anchor.from_run(tmp_path).own_s is None

    def test_what_was_traced_is_found_where_the_folder_was_moved_to(self, tmp_path: Path) -> None:
        """Measured on a server, planned on a laptop."""
        found = profile_of(record(compute=0.4))
        found.features = "/on/the/server/features.json"
        write_record(tmp_path / "profile.json", found)
        assert Anchor.from_run(tmp_path).features is None
        (tmp_path / "features.json").write_bytes(features(16).to_json())
        assert Anchor.from_run(tmp_path).features == features(16)
        assert Anchor.from_run(tmp_path / "profile.json").features == features(16)

    def test_what_is_wrong_with_one_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(RunFolderError, match="holds no `profile"):
            Anchor.from_run(tmp_path)
        with pytest.raises(RunFolderError, match="is not a file"):
            Anchor.from_run(tmp_path / "none")
        (tmp_path / "profile.json").write_text("{")
        with pytest.raises(RunFolderError, match="cannot be read"):
            Anchor.from_run(tmp_path)
        batches = profile_of(record(compute=0.4))
        batches.unit = "batch"
        write_record(tmp_path / "profile.json", batches)
        with pytest.raises(RunFolderError, match="optimizer steps"):
            Anchor.from_run(tmp_path)
        strange = profile_of(record(compute=0.4))
        strange.device, strange.device_name = "cuda", "Voodoo 2"
        write_record(tmp_path / "profile.json", strange)
        with pytest.raises(RunFolderError, match="Voodoo 2"):
            Anchor.from_run(tmp_path)

    def test_an_anchor_checks_itself(self) -> None:
        with pytest.raises(ValueError, match="seconds"):
            Anchor(gpu="cpu", gpus=1, seconds=2.0, low=1.0, high=1.5)
        with pytest.raises(ValueError, match="parts"):
            Anchor(gpu="cpu", gpus=1, seconds=1.0, low=1.0, high=1.0, parts={"wishes": 1.0})

    @pytest.mark.parametrize(
        ("own", "name"),
        [
            ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
            ("NVIDIA A100-SXM4-40GB", "A100-40GB-SXM"),
            ("NVIDIA A100 80GB PCIe", "A100-80GB-PCIe"),
            ("NVIDIA A100-PCIE-40GB", "A100-40GB-PCIe"),
            ("NVIDIA H100 80GB HBM3", "H100-SXM"),
            ("NVIDIA H100 PCIe", "H100-PCIe"),
            ("NVIDIA H200", "H200-SXM"),
            ("Tesla V100-SXM2-16GB", "V100-16GB-SXM"),
            ("Tesla V100-SXM2-32GB", "V100-32GB-SXM"),
            ("Tesla T4", "T4"),
            ("NVIDIA L4", "L4"),
            ("NVIDIA L40S", "L40S"),
            ("NVIDIA A10", "A10"),
            ("NVIDIA A10G", ""),
            ("NVIDIA GeForce RTX 3090", "RTX-3090"),
            ("NVIDIA GeForce RTX 4090", "RTX-4090"),
            ("NVIDIA RTX A6000", "RTX-A6000"),
            ("NVIDIA RTX 6000 Ada Generation", "RTX-6000-Ada"),
            ("Quadro RTX 8000", "RTX-8000"),
            ("NVIDIA B200", "B200-SXM"),
            ("Voodoo 2", ""),
        ],
    )
    def test_devices_are_found_in_the_catalogue(self, own: str, name: str) -> None:
        assert gpu_named(own, catalogue()) == name
