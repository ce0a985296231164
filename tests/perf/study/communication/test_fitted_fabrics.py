import statistics

import pytest

from stoker.perf.study.communication.fitted_fabrics import Fitted, exposed_s, fitted
from stoker.perf.study.communication.fitting import fit, held_out, packed, without
from stoker.perf.study.communication.profiles import profiles
from stoker.perf.study.communication.scaling import peculiarity, scalings
from stoker.perf.study.tables.rows import published

ROWS = scalings()
SOME = [row for row in ROWS if row.gpu in ("RTX-4090", "H100-SXM", "V100-16GB-SXM")]


def test_every_row_on_several_gpus_has_its_anchor_and_a_profile() -> None:
    assert len(ROWS) == 544
    assert all(row.gpus > 1 and row.micro_s > 0 and row.step_s > 0 for row in ROWS)
    assert {row.source for row in ROWS} == {"lambda-v1", "nvidia-dle"}
    assert sum(not peculiarity(row.family) for row in ROWS) == 366


def test_profiles_hold_the_weights_of_well_known_models() -> None:
    """Millions of parameters; gradients of all of them, in fp32."""
    known = {"ResNet [('smoothing', 0.0)]": 25.56, "BertForAnswers [('heads', 16)": 335, "SSD300 []": 22.9}
    for name, millions in known.items():
        profile = next(found for key, found in profiles().items() if name in key)
        assert profile.weights / 1e6 == pytest.approx(millions, rel=0.01)
        assert sum(profile.gradient_bytes) == 4 * profile.weights
        assert 0.5 < sum(profile.backward) < 0.75
        assert 0.2 < profile.forward < 0.45


def test_the_fit_in_the_package_is_that_of_its_rows() -> None:
    assert packed(fit(ROWS)) == packed(fitted())


def test_boxes_without_peer_access_exchange_at_a_fraction_of_nvlink() -> None:
    """Lambda's virtual machines with A100s are some fifty times slower than the sweep on a server with NVLink."""
    found = fitted().bandwidths
    assert found[("lambda-v1", "A100-80GB-SXM", ""), 8] < 3e9
    assert found[("nvidia-dle", "A100-80GB-SXM", "DGX A100"), 8] > 25e9
    assert found[("lambda-v1", "H100-SXM", ""), 8] > 25e9


def test_what_was_not_fitted_is_the_specification() -> None:
    usual = Fitted().fabric(("lambda-v1", "RTX-4090", ""), 2)
    assert (usual.name, usual.basis) == ("host", "fitted")
    box = fitted().fabric(("lambda-v1", "RTX-4090", ""), 2)
    assert (box.name, box.basis) == ("box", "fitted")
    assert "lambda-v1 RTX-4090" in box.source


def test_families_are_predicted_from_others() -> None:
    """The whole bar is ``benchmarks/perf_scaling.py``; here three cards, better than an exchange that is free."""
    found = [each for each in held_out(SOME) if not peculiarity(each.scaling.family)]
    free = statistics.median(abs(each.scaling.alone_s / each.scaling.step_s - 1) for each in found)
    assert statistics.median(each.error for each in found) < min(0.04, free)
    assert all(each.low <= each.seconds <= each.high for each in found)
    assert without("gnmt").bandwidths != without("bert").bandwidths


def test_accumulated_micro_batches_exchange_once() -> None:
    row = next(row for row in ROWS if row.accumulation > 100)
    alone = next(
        row for row in ROWS if row.model == "BERT-large" and row.accumulation == 1 and row.gpu == "V100-32GB-SXM"
    )
    assert exposed_s(row, fitted().fabric(row.box, row.gpus)) < 0.02 * row.step_s
    assert exposed_s(alone, fitted().fabric(alone.box, alone.gpus)) > 0.02 * alone.step_s


def test_rows_of_one_gpu_alone_have_no_scaling() -> None:
    on_one = {(row.source, row.model, row.gpu, row.host) for row in published() if row.gpus == 1}
    assert {(row.source, row.model, row.gpu, row.host) for row in ROWS} <= on_one
