"""Bytes of the methods, against closed forms worked out by hand for networks as they were published."""

import pytest

from benchmarks.programs.drawn_exchanges import SPEED, group, linear, plain, shard, table
from stoker.perf.communication.methods import LEAVES, GradientLayer, Method, MethodOption, RankSpeed, Terms, options
from stoker.perf.communication.planner import ExchangePlan, Planner

MB = 1e6
FAST = RankSpeed(product=lambda m, n, k: 0.0, byte_s=0.0)
HEADS = {"AlexNet": (2.47e6, 9216), "VGG16": (14.7e6, 25088)}
"""Parameters of the convolutions, and the width that the first of three linear layers sees."""


def of(layer: GradientLayer, ranks: int, method: Method, speed: RankSpeed = FAST) -> MethodOption:
    terms = Terms(group=group(ranks, 50e6), speed=speed, allowed=frozenset(LEAVES))
    return next(each for each in options(layer, terms) if each.method == method)


def network(name: str, batch: int, ranks: int) -> Planner:
    conv, width = HEADS[name]
    layers = [plain(4 * conv)]
    for width_in, width_out in ((width, 4096), (4096, 4096), (4096, 1000)):
        layers.append(linear(width_in, width_out, batch, bias=True, fed_by=len(layers) - 1 if layers[1:] else -1))
    terms = Terms(group=group(ranks, 50e6), speed=FAST, allowed=frozenset(LEAVES))
    return Planner(shard(layers), layers, terms)


def sent(plan: ExchangePlan) -> float:
    return sum(layer.bytes for layer in plan.layers) / MB


@pytest.mark.parametrize(
    ("name", "ranks", "batch", "all_reduced", "row", "late"),
    [
        ("AlexNet", 2, 32, 244.4, 13.4, 13.3),
        ("AlexNet", 4, 32, 366.6, 23.6, 25.0),
        ("AlexNet", 8, 32, 427.7, 35.8, 41.1),
        ("AlexNet", 4, 128, 366.6, 50.1, 55.7),
        ("AlexNet", 8, 128, 427.7, 91.4, 112.6),
        ("VGG16", 2, 32, 553.4, 64.4, 64.3),
        ("VGG16", 4, 32, 830.1, 100.2, 104.6),
        ("VGG16", 8, 128, 968.5, 191.4, 255.2),
    ],
)
def test_bytes_of_alexnet_and_vgg(
    name: str, ranks: int, batch: int, all_reduced: float, row: float, late: float
) -> None:
    """A chain of row splits pays for its input once; late-multiply for every layer."""
    model = network(name, batch, ranks)
    for method, expected in (("all_reduce", all_reduced), ("row", row), ("late", late)):
        assert sent(model.plan(model.single(method))) == pytest.approx(expected, rel=0.006)


def test_a_column_and_a_row_split_need_nothing_between_them() -> None:
    """8 (P - 1) b (M + N) with the outer widths alone: 6.36 MB of gradients become 0.64."""
    ranks, batch = 2, 32
    layers = [linear(512, 1024, batch), linear(1024, 512, batch, fed_by=0)]
    model = Planner(
        shard(layers), layers, Terms(group=group(ranks, 50e6), speed=FAST, allowed=frozenset(LEAVES))
    )  # fmt: skip
    column, row = (
        next(place for place, each in enumerate(own) if each.method == method)
        for own, method in zip(model.every, ("column", "row"), strict=True)
    )
    assert sent(model.plan((column, row))) * MB == 8 * (ranks - 1) * batch * (512 + 512)
    assert sent(model.plan((column, 0))) * MB > 8 * (ranks - 1) * batch * (512 + 1024 / ranks)


@pytest.mark.parametrize(
    ("shape", "rows", "ratios"),
    [
        ((4096, 4096), 32, (64, 32, 16)),
        ((4096, 4096), 256, (8, 4, 2)),
        ((9216, 4096), 64, (44.3, 22.2, 11.1)),
        ((25088, 4096), 128, (27.5, 13.8, 6.9)),
        ((4096, 1000), 256, (3.1, 1.6, 0.78)),
    ],
)
def test_factors_are_smaller_below_the_harmonic_mean(
    shape: tuple[int, int], rows: int, ratios: tuple[float, ...]
) -> None:
    """2 M N / (P K (M + N)): fewer bytes as long as the global batch is below 2 M N / (M + N)."""
    for ranks, expected in zip((2, 4, 8), ratios, strict=True):
        layer = linear(*shape, rows)
        ratio = of(layer, ranks, "all_reduce").bytes / of(layer, ranks, "late").bytes
        assert ratio == pytest.approx(expected, rel=0.02)
        harmonic = 2 * shape[0] * shape[1] / (shape[0] + shape[1])
        assert (ratio > 1) == (ranks * rows < harmonic)


@pytest.mark.parametrize(
    ("width", "ranks", "dense", "rows", "split"), [(16, 4, 252.5, 5.73, 4.21), (64, 8, 1168, 27.9, 9.4)]
)
def test_bytes_of_26_tables(width: int, ranks: int, dense: float, rows: float, split: float) -> None:
    """DLRM-like: 100,000 rows each, a batch of 512, and 1.9 MB of layers that are all-reduced anyway."""
    tables = [table(100_000, width, 512)] * 26
    rest = 2 * (ranks - 1) / ranks * 1.9
    for method, expected in (("all_reduce", dense), ("rows", rows), ("table", split)):
        found = sum(of(each, ranks, method).bytes for each in tables) / MB + rest
        assert found == pytest.approx(expected, rel=0.006)


def test_a_network_of_convolutions_gains_next_to_nothing() -> None:
    """ResNet-50: 2 of 25.6 million parameters are in its one linear layer."""
    layers = [plain(4 * 23.5e6), linear(2048, 1000, 32, bias=True)]
    model = Planner(shard(layers), layers, Terms(group=group(8, 50e6), speed=SPEED))
    assert 1 <= sent(model.plan(model.plain)) / sent(model.plan()) <= 1.09


def test_memory_of_factors_and_work_of_products() -> None:
    """P K (M + N) floats, and the product of them all on top of the rank's own, with the check of its factors."""
    option = of(linear(4096, 1024, 32), 8, "late", SPEED)
    assert option.memory_bytes == 4 * 8 * 32 * (4096 + 1024)
    product, check = 2 * 8 * 32 * 4096 * 1024 / 1e11, 4 * 4096 * 1024 * 1e-10
    assert option.work_s == pytest.approx(product + check)


def test_what_needs_leave_says_how_to_give_it_and_what_is_unsafe_says_why() -> None:
    layers = [linear(4096, 4096, 32), table(1000, 64, 32)]
    terms = Terms(group=group(4, 50e6), speed=SPEED, memory_bytes=1e5)
    barred = {each.method: each.barred for layer in layers for each in options(layer, terms) if each.barred}
    assert barred["column"] == barred["row"] == barred["table"] == "not allowed (--comm-allow split)"
    assert barred["half"] == barred["power"] == "not allowed (--comm-allow compress)"
    assert barred["late"] == "its factors take more memory than is left"
    assert barred["islands"] == "each rank is an island by itself"
    norms = Terms(group=terms.group, speed=SPEED, allowed=frozenset({"split"}), unsafe="norms")
    assert {each.barred for each in options(layers[0], norms) if each.method in ("column", "row")} == {"norms"}


def test_gpus_use_nccls_rings() -> None:
    terms = Terms(group=group(8, 1e9, 2, nccl=True), speed=SPEED)
    barred = {each.method: each.barred for each in options(plain(1e6), terms)}
    assert barred["ring"].startswith("runs over sockets")
    assert barred["islands"].startswith("NCCL's all-reduce")
