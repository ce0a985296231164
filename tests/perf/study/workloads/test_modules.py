"""Each published model: its weights counted, a small one run and differentiated, its real shapes passed through."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from stoker.perf.catalogue import gpu
from stoker.perf.study.tables.rows import published
from stoker.perf.study.workloads.definitions import workload_of
from stoker.perf.study.workloads.modules import convolutional, flows, recommenders, recurrent, transformers
from stoker.perf.study.workloads.workload import Workload

FIRST: dict[str, Workload] = {}
for _row in published():
    if isinstance(_found := workload_of(_row), Workload):
        FIRST.setdefault(_found.name, _found)

WEIGHTS = {
    "ResNet50v1.5": (25_557_032, "25.56 M"),
    "ResNeXt101-32x4d": (44_177_704, "44.2 M"),
    "SE-ResNeXt101-32x4d": (48_955_416, "48.96 M"),
    "EfficientNet-v1 (TF2)": (5_288_548, "B0: 5.3 M"),
    "SSD300": (22_894_902, "no figure published"),
    "bert_base_squad, SQuAD": (109_483_778, "110 M: arXiv 1810.04805"),
    "bert_large_squad, SQuAD": (335_143_938, "340 M: the same"),
    "gnmt": (159_605_817, "logged"),
    "transformerxlbase": (191_948_759, "logged"),
    "transformerxllarge": (519_963_095, "logged; 247 M only with an adaptive softmax"),
    "Transformer-big": (210_882_560, "213 M: arXiv 1706.03762; 210 M with this vocabulary"),
    "BART": (406_291_456, "about 10 % more than BERT-large of equal layers: arXiv 1910.13461"),
    "ncf": (31_832_577, "logged"),
    "tacotron2": (28_193_153, "28.2 M"),
    "Wide&Deep (TF2)": (91_777_245, "about 92 M: README"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_as_many_weights_as_published(name: str) -> None:
    with torch.device("meta"):
        module = FIRST[name].build()
    assert sum(weight.numel() for weight in module.parameters()) == WEIGHTS[name][0]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small products gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def words(*shape: int) -> Tensor:
    return torch.randint(50, shape)


SMALL: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "efficientnet": lambda: (convolutional.EfficientNet(0.2, 0.2), (torch.randn(2, 3, 32, 32), torch.tensor([1, 2]))),
    "vnet": lambda: (convolutional.VNet(4), (torch.randn(2, 1, 16, 16, 16), torch.randint(3, (2, 16, 16, 16)))),
    "bert answers": lambda: (
        transformers.BertForAnswers(2, 32, 4, 50),
        (words(2, 12), words(2, 12) % 2, torch.ones(2, 12), words(2) % 12, words(2) % 12),
    ),
    "bert pretraining": lambda: (
        transformers.BertForPretraining(2, 32, 4, 50),
        (words(2, 12), words(2, 12) % 2, torch.ones(2, 12), words(2, 3) % 12, words(2, 3), words(2) % 2),
    ),
    "transformer": lambda: (
        transformers.EncoderDecoder(2, 50, False, 32, 4, 64),
        (words(2, 9), words(2, 7), words(2, 7)),
    ),
    "bart": lambda: (transformers.EncoderDecoder(2, 50, True, 32, 4, 64), (words(2, 9), words(2, 7), words(2, 7))),
    "transformer-xl": lambda: (
        transformers.TransformerXL(2, 32, 4, 64, 0.1, 50),
        (words(6, 2), words(6, 2), torch.randn(2, 6, 2, 32)),
    ),
    "gnmt": lambda: (recurrent.GNMT(50, 16), (words(6, 2), words(5, 2), words(5, 2))),
    "waveglow": lambda: (flows.WaveGlow(5, 2, 8, 4), (torch.randn(2, 4, 3), torch.randn(2, 512))),
    "ncf": lambda: (
        recommenders.NeuralCollaborativeFiltering(50, 40, 8, (16, 16, 8)),
        (words(9), words(9) % 40, torch.zeros(9)),
    ),
    "wide and deep": lambda: (
        recommenders.WideAndDeep(((50, 8), (40, 4)), 3, (2, 6), (16, 16)),
        (torch.ones(9), torch.randn(9, 3), words(9, 1), words(9, 3) % 40, words(9, 1) % 2, words(9, 1) % 6),
    ),
}
UNUSED = {"pooler.weight", "pooler.bias"}
"""Of BERT that marks answers: computed for nothing, as in the published program."""


def idle(module: nn.Module) -> set[str]:
    return {name for name, weight in module.named_parameters() if weight.grad is None}


@pytest.mark.parametrize("name", SMALL)
def test_runs_and_every_weight_learns(name: str) -> None:
    torch.manual_seed(0)
    module, inputs = SMALL[name]()
    loss = module(*inputs)
    assert loss.isfinite()
    loss.backward()
    assert idle(module) == (UNUSED if name == "bert answers" else set())


LARGE = ["SSD300", "tacotron2"]


@pytest.mark.parametrize("name", LARGE)
def test_large_ones_are_differentiated_on_shapes(name: str) -> None:
    workload = FIRST[name].shortened(3) if FIRST[name].loop else FIRST[name]
    with FakeTensorMode():
        module = workload.build()
        module(*workload.tensors()).backward()
    assert not idle(module)


def per_item(workload: Workload) -> tuple[object, ...]:
    """What the FLOPs of an item depend on."""
    sizes = tuple(tuple(size for size in wanted.shape if size != workload.batch) for wanted in workload.inputs)
    return workload.model, str(workload.options), sizes


SHARES: dict[tuple[object, ...], tuple[str, float]] = {}
"""Of an item's FLOPs: a workload, and the items a second of a GPU at one FLOP a second of its rate, at most."""
for _row in published():
    if isinstance(_found := workload_of(_row), Workload) and _row.gpus == 1 and not _found.loop:
        _items = _found.batch * _found.accumulation / _found.step_s(_row) / gpu(_row.gpu).rate(_found.precision)
        SHARES[per_item(_found)] = _found.name, max(_items, SHARES.get(per_item(_found), ("", 0.0))[1])
HIGHEST = {name: (key, share) for key, (name, share) in SHARES.items() if not name.startswith("ResNet50v1.5")}
"""Those are like ``resnet50``."""


@pytest.mark.parametrize("name", sorted(HIGHEST))
def test_real_shapes_pass_through_and_no_row_outruns_its_gpu(name: str) -> None:
    """Batches, lengths or units that were read wrongly show as a share of the GPU's rate that nothing reaches."""
    key, items = HIGHEST[name]
    workload = next(
        found for row in published() if isinstance(found := workload_of(row), Workload) and per_item(found) == key
    )
    with FakeTensorMode(), torch.no_grad(), FlopCounterMode(display=False) as counted:
        assert workload.build()(*workload.tensors()).shape == ()
    assert 3 * counted.get_total_flops() / workload.batch * items < 0.85


def test_every_workload_of_a_model_differs_only_in_sizes() -> None:
    for row in published():
        found = workload_of(row)
        if isinstance(found, Workload):
            assert found.model == FIRST[found.name].model
            assert len(found.inputs) == len(FIRST[found.name].inputs)


def test_relative_positions_are_shifted_row_by_row() -> None:
    """Row i (of 2, with 1 token before) sees distances counted from itself."""
    scores = torch.tensor([[[[10.0, 11.0, 12.0], [20.0, 21.0, 22.0]]]])
    shifted = transformers._shifted(scores)
    assert shifted[0, 0, 0, :2].tolist() == [11.0, 12.0]
    assert shifted[0, 0, 1].tolist() == [20.0, 21.0, 22.0]
