"""An ordinary program of four steps on a GPU: ``device_steps.py KIND [--batch N] [--half]``; imports nothing of stoker.

Kinds: ``decoder`` (attention by torch, AdamW), ``residual`` (convolutions, BatchNorm, SGD with momentum), ``recurrent``
(two LSTM layers and a vocabulary, Adam), ``perceptron`` (wide layers, AdamW without foreach).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY = 16_000


class Decoder(nn.Module):
    """Twelve blocks between a table and a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 768)
        block = nn.TransformerEncoderLayer(768, 12, 3072, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(768, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, classes, length)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.table(tokens), mask=mask, is_causal=True)).transpose(1, 2)


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """As large as its input."""
        y = functional.relu(self.norm1(self.first(x)), inplace=True)
        return functional.relu(x + self.norm2(self.second(y)), inplace=True)


class Recurrent(nn.Module):
    """An LSTM over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.lstm = nn.Embedding(VOCABULARY, 512), nn.LSTM(512, 1024, 2, batch_first=True)
        self.head = nn.Linear(1024, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits, (batch, classes, length)."""
        return self.head(self.lstm(self.table(tokens))[0]).transpose(1, 2)


def residual_network() -> nn.Module:
    """Three stages of residual blocks."""
    stages: list[nn.Module] = [nn.Conv2d(3, 64, 7, stride=2, padding=3), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    for width in (64, 128, 256):
        stages += [Residual(width), Residual(width), nn.Conv2d(width, 2 * width, 1, stride=2)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def perceptron() -> nn.Module:
    """Four wide layers."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(4096, 4096), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(4096, 1000))


def tokens(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """A sequence and its next words."""
    drawn = torch.randint(VOCABULARY, (batch, length + 1), device="cuda")
    return drawn[:, :-1], drawn[:, 1:]


def samples(batch: int, *shape: int) -> tuple[Tensor, Tensor]:
    """Numbers and their classes."""
    return torch.randn(batch, *shape, device="cuda"), torch.randint(1000, (batch,), device="cuda")


KINDS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], torch.optim.Optimizer], int]] = {
    "decoder": (Decoder, lambda model: torch.optim.AdamW(model.parameters()), 16),
    "residual": (residual_network, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), 64),
    "recurrent": (Recurrent, lambda model: torch.optim.Adam(model.parameters()), 64),
    "perceptron": (perceptron, lambda model: torch.optim.AdamW(model.parameters(), foreach=False), 2048),
}
"""Model, optimizer and batch of each kind."""


def main() -> None:
    """Trains for four steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--half", action="store_true", help="in bf16 autocast")
    arguments = parser.parse_args()
    make, optimizer_of, batch = KINDS[arguments.kind]
    batch = arguments.batch or batch
    model = make().to("cuda")
    optimizer = optimizer_of(model)
    for _ in range(4):
        if arguments.kind in ("decoder", "recurrent"):
            x, y = tokens(batch, 256)
        else:
            x, y = samples(batch, *((3, 224, 224) if arguments.kind == "residual" else (4096,)))
        with torch.autocast("cuda", torch.bfloat16) if arguments.half else contextlib.nullcontext():
            loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
