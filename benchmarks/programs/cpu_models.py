"""Small training steps that are predicted and then run on this machine's CPU: six kinds of model, two sizes of each.

No shape of these is among what a calibration measures; a test checks that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer


@dataclass(frozen=True)
class Trained:
    """A module that gives its loss, what it is called with, and its optimizer."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    optimizer: Callable[[Any], Optimizer]


class _Residual(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.short = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.short(x))


class _Separable(nn.Module):
    """An inverted residual block: wider by a 1 x 1 convolution, filtered channel by channel, narrow again."""

    def __init__(self, channels: int, out: int, stride: int, widen: int) -> None:
        super().__init__()
        wide = channels * widen
        self.body = nn.Sequential(
            nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
            nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x) if self.adds else self.body(x)


class _Classifier(nn.Module):
    """Blocks over images, averaged, and classes of them."""

    def __init__(self, stem: nn.Module, blocks: list[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.stem, self.blocks = stem, nn.Sequential(*blocks)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        found = self.blocks(self.stem(images)).mean((2, 3))
        return functional.cross_entropy(self.head(found), labels)


class _Block(nn.Module):
    """A decoder block: causal attention, then two layers with GELU between."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(found.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.between(x))


class _Decoder(nn.Module):
    """Tokens, positions, blocks, and the next token."""

    def __init__(self, vocabulary: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        scores = self.head(self.norm(self.blocks(x)))
        return functional.cross_entropy(scores.flatten(0, 1), following.flatten())


class _Language(nn.Module):
    """A recurrent language model."""

    def __init__(self, vocabulary: int, embedded: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedded)
        self.lstm = nn.LSTM(embedded, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, vocabulary)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        found, _ = self.lstm(self.tokens(tokens))
        return functional.cross_entropy(self.head(found).flatten(0, 1), following.flatten())


class _Recommender(nn.Module):
    """Bags of categories beside numbers, and one probability."""

    def __init__(self, tables: int, rows: int, width: int, numbers: int, hidden: int, sparse: bool) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum", sparse=sparse) for _ in range(tables))
        self.below = nn.Sequential(nn.Linear(numbers, hidden), nn.ReLU(), nn.Linear(hidden, width), nn.ReLU())
        self.above = nn.Sequential(nn.Linear(width * (tables + 1), hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, numbers: Tensor, categories: Tensor, clicked: Tensor) -> Tensor:
        found = [bag(part) for bag, part in zip(self.bags, categories, strict=True)]
        score = self.above(torch.cat([self.below(numbers), *found], 1)).squeeze(1)
        return functional.binary_cross_entropy_with_logits(score, clicked)


class _Perceptron(nn.Module):
    """Layers with ReLU between."""

    def __init__(self, widths: list[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in itertools.pairwise(widths):
            layers += [nn.Linear(before, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers[:-1])

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(self.layers(x), labels)


def _images(batch: int, size: int, classes: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))


def _texts(batch: int, length: int, vocabulary: int) -> tuple[Tensor, ...]:
    return torch.randint(vocabulary, (batch, length)), torch.randint(vocabulary, (batch, length))


def _clicks(batch: int, numbers: int, tables: int, rows: int, bag: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, numbers), torch.randint(rows, (tables, batch, bag)), torch.rand(batch).round()


def _stem(out: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


def conv() -> Trained:
    """A residual network on images of 32 x 32."""
    blocks: list[nn.Module] = [_Residual(48, 48, 1), _Residual(48, 96, 2), _Residual(96, 192, 2)]
    return Trained(_Classifier(_stem(48), blocks, 192, 10), _images(20, 32, 10), partial(SGD, lr=0.1, momentum=0.9))


def attention() -> Trained:
    """A decoder of three blocks over 104 tokens."""
    return Trained(_Decoder(1500, 104, 208, 4, 3), _texts(6, 104, 1500), AdamW)


def lstm() -> Trained:
    """Two recurrent layers over 44 tokens."""
    return Trained(_Language(1800, 112, 176, 2), _texts(20, 44, 1800), Adam)


def embedding_bag() -> Trained:
    """Six tables with dense gradients, bags of nine."""
    model = _Recommender(6, 18_000, 24, 13, 144, False)
    return Trained(model, _clicks(640, 13, 6, 18_000, 9), partial(SGD, lr=0.1))


def mlp() -> Trained:
    """Four layers."""
    return Trained(_Perceptron([740, 1120, 1120, 560, 10]), (torch.randn(112, 740), torch.randint(10, (112,))), Adam)


def depthwise() -> Trained:
    """Inverted residual blocks on images of 40 x 40."""
    shapes = [(20, 20, 1), (20, 36, 2), (36, 36, 1), (36, 72, 2), (72, 72, 1)]
    blocks: list[nn.Module] = [_Separable(a, b, stride, 5) for a, b, stride in shapes]
    return Trained(_Classifier(_stem(20), blocks, 72, 20), _images(14, 40, 20), partial(SGD, lr=0.1, momentum=0.9))


SIX = {f.__name__: f for f in (conv, attention, lstm, embedding_bag, mlp, depthwise)}
"""The models of the bar."""


def narrow_conv() -> Trained:
    """Fewer, larger images, with Adam."""
    blocks: list[nn.Module] = [_Residual(24, 24, 1), _Residual(24, 60, 2), _Residual(60, 120, 2)]
    return Trained(_Classifier(_stem(24), blocks, 120, 100), _images(10, 60, 100), Adam)


def long_attention() -> Trained:
    """Longer texts, wider heads."""
    return Trained(_Decoder(700, 288, 152, 2, 2), _texts(2, 288, 700), Adam)


def wide_lstm() -> Trained:
    """One wide layer over few tokens."""
    return Trained(_Language(900, 136, 312, 1), _texts(34, 18, 900), partial(SGD, lr=0.1))


def sparse_bags() -> Trained:
    """Large tables whose gradients have the rows that were looked up."""
    model = _Recommender(4, 90_000, 40, 20, 232, True)
    return Trained(model, _clicks(360, 20, 4, 90_000, 14), partial(SGD, lr=0.1))


def deep_mlp() -> Trained:
    """More and narrower layers, a larger batch, momentum."""
    widths = [264, *[424] * 6, 30]
    data = (torch.randn(720, 264), torch.randint(30, (720,)))
    return Trained(_Perceptron(widths), data, partial(SGD, lr=0.1, momentum=0.9))


def small_depthwise() -> Trained:
    """Small images, many channels, with Adagrad."""
    shapes = [(28, 28, 1), (28, 52, 1), (52, 100, 2)]
    blocks: list[nn.Module] = [_Separable(a, b, stride, 4) for a, b, stride in shapes]
    return Trained(_Classifier(_stem(28), blocks, 100, 10), _images(18, 22, 10), Adagrad)


OTHERS = {f.__name__: f for f in (narrow_conv, long_attention, wide_lstm, sparse_bags, deep_mlp, small_depthwise)}
"""The same kinds at other sizes, which nobody looked at while the method was made."""
