"""Eight small training programs with steps of a few milliseconds, of the kinds that a cut has slowed or broken."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.support.arms import Program, StepFunction

IMAGES, LABELS, TOKENS = 256, 10, 500
WORDS = 24


def _images() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (IMAGES, 3, 16, 16), dtype=torch.uint8, generator=draw)
    return pixels, torch.randint(0, LABELS, (IMAGES,), generator=draw)


def _sentences() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    words = torch.randint(1, TOKENS, (512, WORDS + 1), generator=draw)
    return words, torch.randint(WORDS // 2, WORDS + 1, (512,), generator=draw)


def _table() -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    categories = torch.randint(0, 1 << 31, (8192, 8), generator=draw)
    return torch.rand(8192, 13, generator=draw), categories, torch.rand(8192, generator=draw)


def _trained(model: nn.Module, loss: Any, momentum: float = 0.9) -> StepFunction:
    """The usual loop body."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        found = loss(batch)
        found.backward()
        optimizer.step()
        return found.item()

    return step


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in "ab")
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in "ab")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, width, h, w]`` to the same."""
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(x + self.norms[1](self.second(inner)))


def _residual() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), Block(16), Block(16), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, LABELS)
    )


def _normalised(pixels: torch.Tensor) -> torch.Tensor:
    mean = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
    return (pixels.float() / 255 - mean) / 0.225


def resnet() -> StepFunction:
    """Images are normalised in the loop."""
    model = _residual()
    return _trained(model, lambda batch: F.cross_entropy(model(_normalised(batch[0])), batch[1]))


def mixup() -> StepFunction:
    """Pairs of images are mixed by random numbers from the main stream."""
    model = _residual()

    def loss(batch: Any) -> torch.Tensor:
        images, labels = _normalised(batch[0]), F.one_hot(batch[1], LABELS).float()
        order, share = torch.randperm(len(images)), float(torch.rand(()))
        images = share * images + (1 - share) * images[order]
        return F.cross_entropy(model(images), share * labels + (1 - share) * labels[order])

    return _trained(model, loss)


class Language(nn.Module):
    """A small transformer that predicts the next word."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(TOKENS, 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.out = nn.Linear(32, TOKENS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """``[batch, length]`` to ``[batch, length, TOKENS]``."""
        mask = nn.Transformer.generate_square_subsequent_mask(words.shape[1])
        return self.out(self.layers(self.words(words), mask, is_causal=True))


def transformer() -> StepFunction:
    """Inputs and targets are cut out of sentences."""
    model = Language()

    def loss(batch: Any) -> torch.Tensor:
        words = batch[0]
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())

    return _trained(model, loss)


def lengths() -> StepFunction:
    """Each batch is as long as its longest sentence: its shapes change from step to step, and are read from values."""
    model = Language()

    def loss(batch: Any) -> torch.Tensor:
        words, length = batch
        longest = int(length.max())
        words = words[:, : longest + 1]
        padded = torch.arange(words.shape[1]) > length.unsqueeze(1)
        words = words.masked_fill(padded, 0)
        return F.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten(), ignore_index=0)

    return _trained(model, loss)


def inflating() -> StepFunction:
    """A recommender whose hashed categories become vectors of a hundred."""
    wide, deep = nn.Linear(8 * 100, 1), nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 1))
    model = nn.ModuleList([wide, deep])

    def loss(batch: Any) -> torch.Tensor:
        dense, categories, target = batch
        hot = F.one_hot((categories * 2_654_435_761) % 100, 100).float()
        found = wide(hot.flatten(1)) + deep(torch.log1p(dense))
        return F.mse_loss(found.squeeze(1), target)

    return _trained(model, loss)


def adversarial() -> StepFunction:
    """Two models, the second called on true and made images; two optimizers."""
    maker = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 768), nn.Tanh())
    judge = nn.Sequential(nn.Linear(768, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    optimizers = [torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999)) for model in (judge, maker)]

    def step(batch: Any) -> float:
        true = (batch[0].float() / 127.5 - 1).flatten(1)
        ones, zeros = torch.ones(len(true), 1), torch.zeros(len(true), 1)
        made = maker(torch.randn(len(true), 16))
        optimizers[0].zero_grad()
        judged = F.binary_cross_entropy_with_logits(judge(true), ones)
        judged = judged + F.binary_cross_entropy_with_logits(judge(made.detach()), zeros)
        judged.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        fooled = F.binary_cross_entropy_with_logits(judge(made), ones)
        fooled.backward()
        optimizers[1].step()
        return judged.item() + fooled.item()

    return step


def deciding() -> StepFunction:
    """What is computed depends on values of the batch."""
    model = _residual()

    def loss(batch: Any) -> torch.Tensor:
        pixels, labels = batch
        images = _normalised(pixels)
        if images.mean() > 0:
            images = images.flip(3)
        if (labels == 0).sum() > len(labels) // LABELS:
            images = images.clamp(-2, 2)
        return F.cross_entropy(model(images), labels)

    return _trained(model, loss)


def compiled() -> StepFunction:
    """The model is compiled, by torch's compiler without code generation (tracing and guards are what matters here)."""
    model = _residual()
    fast = torch.compile(model, backend="eager")
    return _trained(model, lambda batch: F.cross_entropy(fast(_normalised(batch[0])), batch[1]))


PROGRAMS = (
    Program("residual network", 16, _images, resnet),
    Program("transformer", 8, _sentences, transformer),
    Program("inflating one_hot", 1024, _table, inflating),
    Program("mixup", 16, _images, mixup),
    Program("two forwards (GAN)", 16, _images, adversarial),
    Program("lengths that change", 8, _sentences, lengths),
    Program("control flow on values", 16, _images, deciding),
    Program("compiled model", 16, _images, compiled),
)
