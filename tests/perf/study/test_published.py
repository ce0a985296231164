"""Published steps: traced beforehand, predicted without their family; the tables of the package are what code makes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker.perf.catalogue import gpu
from stoker.perf.prediction.anchoring import anchored
from stoker.perf.prediction.calibrated import PART_OF, calibration
from stoker.perf.prediction.intervals import interval
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.prediction.terms import LAUNCH_S
from stoker.perf.prediction.work_vector import AMOUNTS
from stoker.perf.strategy import Machines
from stoker.perf.study.baseline import Baseline
from stoker.perf.study.compiling import compiled
from stoker.perf.study.cross_validation import Judge, source
from stoker.perf.study.published import LOOSE, configurations, study
from stoker.perf.study.tables.decoders import decoders
from stoker.perf.study.tables.traced import traced_programs
from stoker.perf.study.workloads.mpt import mpt_rows
from stoker.perf.study.workloads.tracing import decoder, distinct, mpt_features, traced
from tests.perf.prediction.features import training

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge()


def test_every_workload_is_traced() -> None:
    assert set(distinct()) == set(traced_programs())
    assert not {name for each in traced_programs().values() for name in each.unknown} - {"_linalg_slogdet"}


@pytest.mark.parametrize("name", ["NCF", "SSD300", "gnmt", "waveglow"])
def test_traces_are_what_tracing_makes(name: str) -> None:
    """Compile the table again where this fails: `python -m stoker.perf.study.workloads.tracing`, then the intervals."""
    if name == "waveglow" and TORCH < (2, 9):
        pytest.skip("`x[:, a:b]` slices both dimensions (in torch 2.6, not in 2.9): the table is of torch 2.13")
    found = min((w for w in distinct().values() if w.name == name), key=lambda workload: workload.batch)
    again = traced(found)
    kept = traced_programs()[found.key]
    assert again.work == pytest.approx(kept.work, rel=1e-3)
    assert again.gradient_bytes == kept.gradient_bytes


def test_a_configuration_is_there_once() -> None:
    found = configurations()
    keys = {
        (c.source, c.family, c.framework, c.workload.name, c.gpu, c.gpus, c.workload.key, c.workload.accumulation)
        for c in found
    }
    assert len(keys) == len(found)
    assert sum(each.hosts for each in found) == 1_314
    assert {each.family for each in found} > set(LOOSE)


def test_accumulated_micro_batches_share_one_optimizer_step() -> None:
    found = next(each for each in configurations() if each.workload.accumulation > 1)
    work = np.array(found.traced.work)
    once = study([found]).at_spec[0]
    terms = list(PART_OF)
    assert once[terms.index("optimizer")] < work.sum()  # seconds, not bytes
    assert once[terms.index("launches")] == pytest.approx(
        work[AMOUNTS.index("compiled launches" if found.stack.compiled else "launches")]
        * found.workload.accumulation
        * LAUNCH_S
    )


def test_families_left_out_are_predicted_better_than_by_flops(judge: Judge) -> None:
    rows = judge.rows(alone=True)
    found, flops = judge.left_out(rows), Baseline(judge).left_out(rows)
    assert np.median(found.errors) < 0.5 * np.median(flops.errors)
    assert 0.8 < found.covered < 0.97
    sources = judge.left_out(rows, source)
    assert set(sources.groups) == {"lambda-v1", "nvidia-dle"}


def test_exchange_and_waiting_widen_the_interval_on_several_gpus(judge: Judge) -> None:
    """As predictions have it: a step that may wait is no surer than the same on one GPU."""
    rows = judge.rows()
    found = judge.left_out(rows)
    alone = np.array([judge.all[row].gpus == 1 for row in rows])
    widths = found.high / found.low
    assert np.median(widths[~alone]) > 1.1 * np.median(widths[alone])
    assert (found.low <= found.predicted).all()
    assert (found.predicted <= found.high).all()
    assert 0.85 <= found.covered <= 0.95


def test_groups_without_an_interval_have_none(judge: Judge) -> None:
    """Two sources: what one of them is off says nothing about the other."""
    found = judge.left_out(judge.rows(), source)
    assert (found.low == found.predicted).all()
    assert (found.high == found.predicted).all()


def test_nothing_of_a_family_is_seen_when_it_is_predicted(judge: Judge) -> None:
    """Its own rows, however wrong, change nothing."""
    rows = judge.rows(alone=True)
    spoilt = Judge(judge.all)
    own = [row for row in rows if judge.all[row].family == "ssd"]
    spoilt.measured = judge.measured.copy()
    spoilt.measured[own] *= 100
    kept, changed = judge.left_out(rows), spoilt.left_out(rows)
    places = [place for place, row in enumerate(rows) if row in own]
    np.testing.assert_allclose(changed.predicted[places], kept.predicted[places], rtol=1e-3)


def test_decoders_are_what_tracing_makes() -> None:
    row = next(row for row in mpt_rows() if row.model == "MPT-125m" and row.nodes == 1)
    again, kept = decoder(row, mpt_features(row)), decoders()[mpt_rows().index(row)]
    assert (kept.model, kept.gpu, kept.gpus) == (row.model, row.gpu, row.gpus)
    assert again.work == pytest.approx(kept.work, rel=1e-3)
    assert again.own_s == pytest.approx(kept.own_s, rel=1e-3)


def test_decoders_are_calibrated_on_and_judged_without_themselves(judge: Judge) -> None:
    """None of them was in the general calibration, though they are what people train."""
    terms = list(PART_OF)
    seen, unseen = calibration(), judge.without(frozenset({"mpt"}))
    prior = next(term.prior for term in seen.terms if term.name == "fused attention")
    at = terms.index("fused attention")
    assert unseen.coefficients[at] == pytest.approx(prior, rel=0.05), "no other step has it"
    assert seen.coefficients[at] < 0.8 * prior
    found = judge.decoders()
    assert len(found.groups) == sum(row.nodes == 1 for row in mpt_rows())
    assert np.median(found.errors) < 0.10


def test_cards_that_are_bridged_in_pairs_exchange_over_pcie_from_three_on() -> None:
    fabrics = {each.gpus: each.group.fabric.name for each in configurations() if each.gpu == "H100-PCIe"}
    assert fabrics == {1: "nvlink", 2: "nvlink", 4: "pcie", 8: "pcie"}


def test_an_anchor_moves_towards_its_step(judge: Judge) -> None:
    at_spec = judge.at_spec[0]
    seconds = float(calibration().seconds(at_spec[None])[0])
    moved = anchored(calibration(), at_spec, 2 * seconds)
    assert float(moved.seconds(at_spec[None])[0]) == pytest.approx(2 * seconds)
    assert (moved.coefficients >= calibration().coefficients * 0.99).all()


def test_intervals_are_what_the_errors_say(judge: Judge) -> None:
    """Compile them again where this fails: `python -m stoker.perf.study.compiling`."""
    for key, found in compiled(judge, ("card",)).items():
        for each in found:
            below, above = interval("card", anchored="anchored" in key, share=each.share)
            assert (below, above) == pytest.approx((each.below, each.above), rel=0.01)


def test_the_calibration_is_what_a_refit_says(judge: Judge) -> None:
    """Compile it again where this fails: `python -m stoker.perf.study.compiling`."""
    kept, again = calibration(), judge.without()
    assert kept.terms == again.terms
    np.testing.assert_allclose(kept.coefficients, again.coefficients, rtol=1e-9)
    np.testing.assert_allclose(kept.seconds(judge.at_spec), again.seconds(judge.at_spec), rtol=1e-9)
    np.testing.assert_allclose(kept.doubts(judge.at_spec), again.doubts(judge.at_spec), rtol=1e-9)
    beside = np.roll(judge.at_spec, 1, axis=0)  # as of an anchor: differences of shares, where digits could be lost
    np.testing.assert_allclose(kept.doubts(judge.at_spec, beside), again.doubts(judge.at_spec, beside), rtol=1e-9)
    ours, theirs = (
        Predictor(used).predict(training(), Machines(gpu=gpu("H200-SXM"), gpus=8)) for used in (None, again)
    )
    assert [ours.seconds, ours.low, ours.high] == pytest.approx([theirs.seconds, theirs.low, theirs.high], rel=1e-9)


def test_an_unknown_share_is_named() -> None:
    with pytest.raises(ValueError, match=r"`share` must be one of 0.5, 0.8, 0.9, 0.95, got 0.7"):
        interval("card", anchored=False, share=0.7)
