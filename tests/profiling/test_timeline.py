"""From spans to seconds: whose each instant is, with nesting, exchange and a device."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.diagnosis.kernels import label_of_kernel, label_of_operator
from stoker.perf.diagnosis.sampled import Kernel, ProfilerTrace, analyse
from stoker.perf.diagnosis.timeline import (
    CLOSURE,
    MODULE,
    NEXT,
    OPTIMIZER,
    STEP,
    Busy,
    TracedRange,
    flatten,
    on_device,
    on_host,
)
from stoker.records.parts import PARTS


def op(name: str, start: int, end: int, sequence: int = -1, number: int = 0) -> TracedRange:
    return TracedRange(name, start, end, label_of_operator(name), sequence, number)


def shown(spans: list[TracedRange]) -> list[tuple[int, int, str]]:
    return [(s.start, s.end, s.label) for s in flatten(spans)]


class TestLabels:
    @pytest.mark.parametrize(
        ("name", "label"),
        [
            ("aten::addmm", "compute"),
            ("aten::mm", "compute"),
            ("aten::bmm", "compute"),
            ("aten::baddbmm", "compute"),
            ("aten::mkldnn_convolution", "compute"),
            ("aten::convolution_backward", "compute"),
            ("aten::cudnn_convolution", "compute"),
            ("aten::_scaled_dot_product_flash_attention_for_cpu", "compute"),
            ("aten::_scaled_dot_product_efficient_attention_backward", "compute"),
            ("aten::mkldnn_rnn_layer", "compute"),
            ("aten::_cudnn_rnn_backward", "compute"),
            ("aten::add_", "memory"),
            ("aten::native_batch_norm", "memory"),
            ("aten::addcmul_", "memory"),
            ("aten::embedding_dense_backward", "memory"),
            ("aten::copy_", "memory"),
            ("mylib::special", "memory"),
            ("aten::view", "host"),
            ("aten::empty_like", "host"),
            ("aten::as_strided", "host"),
            ("c10d::allreduce_", "communication"),
            ("gloo:all_reduce", "communication"),
            ("autograd::engine::evaluate_function: AddmmBackward0", None),
            ("AddmmBackward0", None),
            ("Optimizer.step#AdamW.step", None),
        ],
    )
    def test_operators(self, name: str, label: str | None) -> None:
        assert label_of_operator(name) == label

    def test_what_others_implement_is_dispatch(self) -> None:
        assert label_of_operator("aten::softmax", is_wrapper=True) == "host"
        assert label_of_operator("aten::addmm", is_wrapper=True) == "compute"

    @pytest.mark.parametrize(
        ("name", "operator", "label"),
        [
            ("ampere_sgemm_128x64_tn", "", "compute"),
            ("void cutlass::Kernel2<...>", "", "compute"),
            ("void at::native::vectorized_elementwise_kernel<4, ...>", "aten::add", "memory"),
            ("void cudnn::ops::nchwToNhwcKernel<...>", "aten::cudnn_convolution", "compute"),
            ("triton_poi_fused_add_0", "", "memory"),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)", "c10d::allreduce_", "communication"),
            ("Memcpy HtoD (Pinned -> Device)", "aten::copy_", "copy"),
            ("Memcpy DtoH (Device -> Pageable)", "aten::copy_", "memory"),
            ("Memset (Device)", "aten::zero_", "memory"),
        ],
    )
    def test_kernels(self, name: str, operator: str, label: str) -> None:
        assert label_of_kernel(name, operator) == label


class TestThread:
    def test_an_instant_belongs_to_the_innermost(self) -> None:
        spans = [op("aten::linear_like", 0, 100), op("aten::addmm", 10, 90), op("aten::copy_", 20, 30)]
        assert shown(spans) == [
            (0, 10, "memory"), (10, 20, "compute"), (20, 30, "memory"), (30, 90, "compute"), (90, 100, "memory"),
        ]  # fmt: skip

    def test_gaps_are_the_hosts_until_the_optimizer_is_done(self) -> None:
        spans = [op("aten::mm", 0, 10), op(OPTIMIZER, 20, 30), op(NEXT, 50, 60), op("aten::mm", 70, 80)]
        assert shown(spans) == [
            (0, 10, "compute"), (10, 20, "host"), (20, 30, "optimizer"), (30, 50, "other"), (50, 60, "input"),
            (60, 70, "host"), (70, 80, "compute"),
        ]  # fmt: skip

    def test_what_makes_a_batch_in_the_program_is_input(self) -> None:
        assert shown([op(NEXT, 0, 50), op("aten::stack", 10, 40)]) == [
            (0, 10, "input"), (10, 40, "input"), (40, 50, "input"),
        ]  # fmt: skip

    def test_a_closure_is_not_the_optimizers(self) -> None:
        spans = [op(OPTIMIZER, 0, 100), op(CLOSURE, 10, 60), op("aten::mm", 20, 50), op("aten::add_", 70, 90)]
        found = shown(spans)
        assert (20, 50, "compute") in found
        assert (70, 90, "optimizer") in found
        assert sum(end - start for start, end, label in found if label == "optimizer") == 50

    def test_backward_operators_have_the_module_of_their_forward(self) -> None:
        spans = [
            op(MODULE + "layer1", 0, 20), op("aten::addmm", 5, 15, sequence=3),
            op("autograd::engine::evaluate_function: AddmmBackward0", 30, 60, sequence=3), op("aten::mm", 35, 55),
        ]  # fmt: skip
        assert [(s.module, s.start) for s in flatten(spans) if s.label == "compute"] == [("layer1", 5), ("layer1", 35)]


spans_strategy = st.lists(
    st.tuples(
        st.sampled_from(["aten::mm", "aten::add", "aten::view", NEXT, OPTIMIZER, MODULE + "a", "c10d::allreduce_"]),
        st.integers(0, 1000),
        st.integers(0, 300),
    ),
    max_size=30,
)


def nested(raw: list[tuple[str, int, int]]) -> list[TracedRange]:
    """Spans as one thread has them: inside of one another or apart."""
    found: list[TracedRange] = []
    for name, start, length in sorted(raw, key=lambda each: (each[1], -each[2])):
        end = start + length
        for outer in found:
            if outer.start <= start < outer.end:
                end = min(end, outer.end)
        found.append(op(name, start, end))
    return found


class TestSums:
    @given(spans_strategy)
    def test_segments_cover_everything_once(self, raw: list[tuple[str, int, int]]) -> None:
        spans = nested(raw)
        segments = flatten(spans)
        if spans:
            assert sum(s.length for s in segments) == max(s.end for s in spans) - min(s.start for s in spans)
        assert all(a.end == b.start for a, b in pairwise(segments))

    @given(spans_strategy, st.lists(st.tuples(st.integers(0, 900), st.integers(1, 400)), max_size=10))
    def test_labels_sum_to_the_step_and_exchange_to_itself(
        self, raw: list[tuple[str, int, int]], busy: list[tuple[int, int]]
    ) -> None:
        segments = flatten(nested(raw))
        exchanges = [(start, start + length) for start, length in busy]
        seconds, hidden = on_host(segments, exchanges)
        assert sum(seconds.values()) == pytest.approx(sum(s.length for s in segments))
        assert min(seconds.values(), default=0) >= 0
        total = Busy(exchanges).within(segments[0].start, segments[-1].end) if segments else 0.0
        assert 0 <= hidden <= total

    @given(
        spans_strategy,
        st.lists(
            st.tuples(
                st.integers(0, 1200),
                st.integers(1, 300),
                st.sampled_from(["compute", "memory", "communication", "copy"]),
            ),
            max_size=20,
        ),
    )
    def test_a_device_never_counts_an_instant_twice(
        self, raw: list[tuple[str, int, int]], work: list[tuple[int, int, str]]
    ) -> None:
        segments = flatten(nested(raw))
        kernels = [(start, start + length, label) for start, length, label in work]
        seconds, hidden = on_device(segments, kernels)
        assert sum(seconds.values()) == pytest.approx(sum(s.length for s in segments))
        assert hidden >= 0
        assert set(seconds) == set(PARTS)

    @given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 50)), max_size=12), st.integers(0, 150))
    def test_overlap_is_counted_instant_by_instant(self, raw: list[tuple[int, int]], at: int) -> None:
        intervals = [(start, start + length) for start, length in raw]
        instants = {t for start, end in intervals for t in range(start, end)}
        busy = Busy(intervals)
        assert busy.total == len(instants)
        assert busy.within(at, at + 20) == len([t for t in instants if at <= t < at + 20])


class TestSteps:
    def test_waiting_for_an_exchange_is_exposed_and_the_rest_hidden(self) -> None:
        segments = flatten([op("aten::mm", 0, 100), op("aten::mm", 160, 200)])
        seconds, hidden = on_host(segments, [(50, 150)])
        assert (seconds["communication"], hidden, seconds["host"]) == (50, 50, 10)

    def test_an_idle_device_waits_for_what_the_host_is_at(self) -> None:
        segments = flatten([op(NEXT, 0, 40), op("aten::mm", 40, 60), op(OPTIMIZER, 60, 70), op(NEXT, 90, 100)])
        kernels = [(45, 80, "compute"), (50, 75, "communication"), (20, 30, "copy")]
        seconds, hidden = on_device(segments, kernels)
        assert seconds == {
            "input": 40, "copy": 10, "compute": 35, "memory": 0, "host": 5, "communication": 0, "optimizer": 0,
            "other": 10,
        }  # fmt: skip
        assert hidden == 25

    def test_whole_steps_after_the_one_to_settle(self) -> None:
        spans = [op(STEP, at, at) for at in (0, 1000, 2000, 3000)]
        spans += [op("aten::mm", at, at + 400) for at in (100, 1100, 2100)]
        found = analyse(ProfilerTrace(main=spans), first=5)
        assert [step.number for step in found.steps] == [6, 7]
        assert [step.seconds["compute"] for step in found.steps] == pytest.approx([400e-9, 400e-9])
        assert found.operators[0].calls == 1

    def test_kernels_get_module_and_region_of_the_operator_that_started_them(self) -> None:
        spans = [op(STEP, at, at) for at in (0, 1000, 2000)]
        spans += [
            op(MODULE + "body", 1100, 1300), op("aten::mm", 1110, 1120, sequence=7, number=11),
            op(OPTIMIZER, 1600, 1900), op("aten::_foreach_add_", 1610, 1620, number=13),
        ]  # fmt: skip
        backward = [
            op("autograd::engine::evaluate_function: MmBackward0", 1400, 1500, sequence=7),
            op("aten::mm", 1410, 1420, number=12),
        ]
        kernels = [
            Kernel(name="gemm", start=1200, end=1300, operator=11),
            Kernel(name="gemm", start=1450, end=1550, operator=12),
            Kernel(name="multi_tensor_apply_kernel", start=1650, end=1700, operator=13),
        ]
        found = analyse(ProfilerTrace(main=spans, threads=[backward], kernels=kernels), first=0)
        step = found.steps[0].seconds
        assert step["compute"] == pytest.approx(200e-9)
        assert step["optimizer"] == pytest.approx(50e-9)
        assert {module.path: module.compute_s for module in found.modules} == {"body": pytest.approx(200e-9)}
