"""Classic models against arithmetic by hand, from their published sizes."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from stoker.perf import characterise
from stoker.perf.features.records import StepFeatures
from stoker.perf.study.workloads.modules.convolutional import ResNet
from stoker.perf.study.workloads.modules.recurrent import GNMT
from stoker.perf.study.workloads.modules.transformers import BertForPretraining


def products(found: StepFeatures, phase: str, kind: str = "matmul") -> float:
    return sum(o.flops for o in found.operations if o.phase == phase and o.kind == kind)


def test_resnet50() -> None:
    """A convolution has kernel^2 x channels in x channels out x places of its output multiplications."""
    stem, head = 7**2 * 3 * 64 * 112**2, 2048 * 1000
    macs, inputs = stem + head, 64
    weights = 7**2 * 3 * 64 + 2 * 64 + head + 1000
    for width, blocks, side in ((64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)):
        for block in range(blocks):
            before = side * 2 if block == 0 and width > 64 else side  # the stride is the 3x3 convolution's
            convolutions = [inputs * width, 9 * width**2, width * 4 * width]
            macs += convolutions[0] * before**2 + (convolutions[1] + convolutions[2]) * side**2
            if block == 0:
                convolutions.append(inputs * 4 * width)
                macs += convolutions[-1] * side**2
            norms = 2 * (width + width + 4 * width + (4 * width if block == 0 else 0))
            weights += sum(convolutions) + norms
            inputs = 4 * width
    with torch.device("meta"):
        model = ResNet(50)
    batch = 4
    images, labels = torch.empty(batch, 3, 224, 224), torch.zeros(batch, dtype=torch.int64)
    found = characterise(model, (images, labels), optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    assert macs == 4_089_184_256  # the 4.1 GMACs of the paper's table 1, stride in the 3x3 (version 1.5)
    assert found.matrix_flops("forward") == 2 * batch * macs
    # Both gradients of each product, but for that of the images; the bias of the head is a sum of its own.
    assert found.matrix_flops("backward") == 2 * batch * (2 * macs - stem)
    assert found.weights.count == weights == 25_557_032
    assert found.weights.dense_gradient_bytes == found.weights.optimizer_bytes == 4 * weights
    assert found.input_bytes_per_sample == 3 * 224**2 * 4 + 8
    assert found.fused_bytes < found.eager_bytes
    assert not found.unknown


def test_bert_large_pretraining() -> None:
    """A layer: 12 width^2 weights for each token, and two products of tokens with tokens of its sequence."""
    layers, width, heads, words, batch, length, masked = 24, 1024, 16, 30_528, 2, 128, 20
    tokens = batch * length
    with torch.device("meta"):
        model = BertForPretraining(layers, width, heads)
    whole = torch.zeros(batch, length, dtype=torch.int64)
    inputs = (whole, whole, torch.ones(batch, length), whole[:, :masked], whole[:, :masked], whole[:, 0])
    found = characterise(model, inputs, optimizer=torch.optim.Adam)
    stack = layers * (2 * 12 * width**2 * tokens + 2 * 2 * tokens * length * width)
    head = 2 * batch * width**2 + 2 * batch * masked * (width**2 + width * words) + 2 * batch * 2 * width
    assert products(found, "forward") == stack + head
    assert products(found, "backward") == 2 * (stack + head)
    weights = (words + 512 + 2) * width + 2 * width  # embeddings and their norm
    weights += layers * (12 * width**2 + 13 * width)  # four times width and four, biases, two norms
    weights += 2 * (width**2 + width) + 2 * width + words + 2 * width + 2  # pooler, transform, bias, next sentence
    assert found.weights.count == weights
    # The table of words also multiplies, as the last layer: only positions and segments are looked up alone.
    assert found.weights.embedding_count == (512 + 2) * width
    assert found.weights.optimizer_bytes == 2 * 4 * weights


class Decoder(nn.Module):
    """GPT-2 (Radford et al., 2019): norms first, GELU, learned positions, its table of words also the head."""

    def __init__(self, layers: int, width: int, heads: int, words: int = 50_257, length: int = 1024) -> None:
        super().__init__()
        self.heads = heads
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers + 1))
        self.mixed = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.dense = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for n, (mixed, out, dense) in enumerate(zip(self.mixed, self.out, self.dense, strict=True)):
            q, k, v = mixed(self.norms[2 * n](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + out(y.transpose(1, 2).flatten(2))
            x = x + dense(self.norms[2 * n + 1](x))
        scores = functional.linear(self.norms[-1](x), self.words.weight)
        return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def test_gpt2_small() -> None:
    """As BERT's layers; each token sees those before it and itself: n (n + 1) / 2 pairs."""
    layers, width, heads, batch, length, words = 12, 768, 12, 2, 1024, 50_257
    with torch.device("meta"):
        model = Decoder(layers, width, heads).to(torch.bfloat16)
    found = characterise(model, torch.zeros(batch, length, dtype=torch.int64), optimizer=torch.optim.AdamW)
    tokens = batch * length
    dense = layers * 2 * 12 * width**2 * tokens + 2 * tokens * width * words
    attention = layers * 2 * 2 * width * batch * length * (length + 1) // 2
    assert products(found, "forward") == dense
    assert products(found, "backward") == 2 * dense
    assert products(found, "forward", "attention") == attention
    assert products(found, "backward", "attention") == 2.5 * attention  # the scores are computed again
    assert found.weights.count == (words + length) * width + layers * (12 * width**2 + 13 * width) + 2 * width
    assert found.weights.count == 124_439_808


class DLRM(nn.Module):
    """Deep learning recommendation model (arXiv 1906.00091), sizes of MLPerf's but for the tables' rows."""

    def __init__(self, rows: int, tables: int = 26, width: int = 128, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables))
        self.bottom, self.top = self._dense(13, 512, 256, width), self._dense(479, 1024, 1024, 512, 256, 1)

    def _dense(self, *widths: int) -> nn.Sequential:
        layers = ((nn.Linear(before, after), nn.ReLU()) for before, after in itertools.pairwise(widths))
        return nn.Sequential(*(layer for pair in layers for layer in pair))

    def forward(self, numbers: Tensor, rows: Tensor) -> Tensor:
        x = self.bottom(numbers)
        found = [table(rows[:, n : n + 1]) for n, table in enumerate(self.tables)]
        vectors = torch.stack([x, *found], 1)
        at = torch.tril_indices(27, 27, -1)
        pairs = torch.bmm(vectors, vectors.transpose(1, 2))[:, at[0], at[1]]
        return self.top(torch.cat([x, pairs], 1)).sum()


@pytest.mark.parametrize("sparse", [False, True])
def test_dlrm(sparse: bool) -> None:
    """Tables are looked up, never multiplied; their gradients are whole tables, or one row for each lookup."""
    rows, batch, width = 10_000, 64, 128
    inputs = (torch.empty(batch, 13), torch.randint(rows, (batch, 26)))
    with torch.device("meta"):
        model = DLRM(rows, sparse=sparse)
    optimizer = (lambda p: torch.optim.SGD(p, lr=0.1)) if sparse else torch.optim.Adagrad
    found = characterise(model, inputs, optimizer=optimizer)
    sizes = ((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1))
    dense = sum(math.prod(pair) for widths in sizes for pair in itertools.pairwise(widths))
    assert products(found, "forward") == 2 * batch * (dense + 27 * 27 * width)
    assert products(found, "backward") == 2 * products(found, "forward") - 2 * batch * 13 * 512
    weights = found.weights
    assert weights.dense_count == dense + sum(sum(widths[1:]) for widths in sizes)
    assert weights.embedding_count == 26 * rows * width
    assert weights.embedding_touched_bytes == 26 * batch * width * 4
    assert weights.embedding_gradient_bytes == (26 * batch * width * 4 if sparse else weights.embedding_bytes)
    assert weights.optimizer_bytes == (0 if sparse else weights.bytes)
    stepped = [o for o in found.operations if o.phase == "optimizer" and o.kind == "indexing"]
    if sparse:  # rows and their numbers: the gradient is read, the table read and written where it has rows
        assert sum(o.eager_bytes for o in stepped) == 26 * 3 * (batch * width * 4 + batch * 8)
    assert not found.unknown


def test_gnmt() -> None:
    """An LSTM: four gates from input and state, for each token and direction; the gates cost 10 FLOPs an element."""
    width, words, source, target, batch = 1024, 31_800, 12, 10, 4
    with torch.device("meta"):
        model = GNMT()
    shapes = ((source, batch), (target, batch), (target, batch))
    found = characterise(model, tuple(torch.zeros(shape, dtype=torch.int64) for shape in shapes))

    def lstm(tokens: int, inputs: int, directions: int = 1) -> int:
        return directions * tokens * batch * (2 * 4 * width * (inputs + width) + 10 * width)

    encoder = lstm(source, width, 2) + lstm(source, 2 * width) + 2 * lstm(source, width)
    decoder = lstm(target, width) + 3 * lstm(target, 2 * width)
    assert products(found, "forward", "rnn") == encoder + decoder
    assert products(found, "backward", "rnn") == 2 * (encoder + decoder)
    queries, keys, pairs = 2 * target * width**2, 2 * source * width**2, 2 * 2 * target * source * width
    head = 2 * target * width * words
    assert products(found, "forward") == batch * (queries + keys + pairs + head)
    assert found.weights.count == 159_605_817  # as its program logs
