# (torch leaves parts of its signatures untyped)
"""Networks of convolutions: classifiers, the single-shot detector, segmentation of volumes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LAYERS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


class Squeeze(nn.Module):
    """Scales channels by a function of their means (squeeze and excitation, arXiv 1709.01507)."""

    def __init__(self, channels: int, hidden: int, activation: type[nn.Module] = nn.ReLU) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            activation(),
            nn.Conv2d(hidden, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """The scaled channels."""
        return x * self.gate(x)


class BottleneckBlock(nn.Module):
    """1x1, 3x3 (with the stride: version 1.5) and 1x1 convolutions with a shortcut."""

    def __init__(self, inputs: int, width: int, outputs: int, stride: int, groups: int, squeeze: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *_convolution(inputs, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride, groups),
            nn.ReLU(inplace=True),
            *_convolution(width, outputs, 1),
        )
        self.squeeze = Squeeze(outputs, outputs // 16) if squeeze else nn.Identity()
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return F.relu(self.squeeze(self.body(x)) + self.shortcut(x))


def _stages(depth: int, groups: int, squeeze: bool, strides: Sequence[int]) -> nn.Sequential:
    """The stem and as many stages as there are strides."""
    stem = (*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    stages: list[nn.Module] = [*stem]
    inputs = 64
    for number, stride in enumerate(strides):
        width, outputs = (64 if groups == 1 else 128) << number, 256 << number
        for block in range(LAYERS[depth][number]):
            stages.append(BottleneckBlock(inputs, width, outputs, stride if block == 0 else 1, groups, squeeze))
            inputs = outputs
    return nn.Sequential(*stages)


class ResNet(nn.Module):
    """ResNet v1.5 (arXiv 1512.03385), ResNeXt (groups of 4, arXiv 1611.05431) and SE-ResNeXt, with their loss."""

    def __init__(self, depth: int = 50, groups: int = 1, squeeze: bool = False, smoothing: float = 0.1) -> None:
        super().__init__()
        self.features = _stages(depth, groups, squeeze, (1, 2, 2, 2))
        self.classifier = nn.Linear(2048, 1000)
        self.smoothing = smoothing

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of images (batch, 3, height, width) and their classes."""
        found = self.classifier(self.features(images).mean((2, 3)))
        return F.cross_entropy(found, labels, label_smoothing=self.smoothing)


class SSD300(nn.Module):
    """Single-shot detector (arXiv 1512.02325) on the first three stages of ResNet-50: 8,732 boxes, 81 classes."""

    def __init__(self, classes: int = 81) -> None:
        super().__init__()
        self.classes = classes
        self.features = _stages(50, 1, False, (1, 2, 1))
        channels, hidden = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
        self.extra = nn.ModuleList(
            nn.Sequential(
                *_convolution(inputs, middle, 1),
                nn.ReLU(inplace=True),
                *_convolution(middle, outputs, 3, 2 if number < 3 else 1, padding=1 if number < 3 else 0),
                nn.ReLU(inplace=True),
            )
            for number, (inputs, middle, outputs) in enumerate(zip(channels, hidden, channels[1:], strict=False))
        )
        boxes = (4, 6, 6, 6, 4, 4)
        self.places = nn.ModuleList(nn.Conv2d(c, 4 * n, 3, padding=1) for c, n in zip(channels, boxes, strict=True))
        self.kinds = nn.ModuleList(
            nn.Conv2d(c, classes * n, 3, padding=1) for c, n in zip(channels, boxes, strict=True)
        )

    def forward(self, images: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        """Loss of boxes (batch, 4, 8732) and labels (batch, 8732; 0 is background): three negatives for a positive."""
        maps = [self.features(images)]
        for block in self.extra:
            maps.append(block(maps[-1]))
        batch = len(images)
        places = torch.cat([head(x).view(batch, 4, -1) for head, x in zip(self.places, maps, strict=True)], 2)
        kinds = torch.cat([head(x).view(batch, self.classes, -1) for head, x in zip(self.kinds, maps, strict=True)], 2)
        positive = labels > 0
        counts = positive.sum(1)
        distance = (F.smooth_l1_loss(places, boxes, reduction="none").sum(1) * positive).sum(1)
        doubt = F.cross_entropy(kinds, labels, reduction="none")
        rank = doubt.masked_fill(positive, 0.0).argsort(1, descending=True).argsort(1)
        chosen = positive | (rank < 3 * counts.unsqueeze(1))
        return ((distance + (doubt * chosen).sum(1)) / counts.clamp(min=1)).mean()


class EfficientNet(nn.Module):
    """EfficientNet (arXiv 1905.11946), scaled in width and depth."""

    STAGES = (  # expansion, channels, blocks, stride, kernel
        (1, 16, 1, 1, 3),
        (6, 24, 2, 2, 3),
        (6, 40, 2, 2, 5),
        (6, 80, 3, 2, 3),
        (6, 112, 3, 1, 5),
        (6, 192, 4, 2, 5),
        (6, 320, 1, 1, 3),
    )

    def __init__(self, width: float = 1.0, depth: float = 1.0) -> None:
        super().__init__()
        inputs = _rounded(32 * width)
        layers: list[nn.Module] = [*_convolution(3, inputs, 3, 2), nn.SiLU(inplace=True)]
        for expansion, channels, blocks, stride, kernel in self.STAGES:
            outputs = _rounded(channels * width)
            for block in range(math.ceil(blocks * depth)):
                layers.append(Inverted(inputs, expansion, outputs, kernel, stride if block == 0 else 1))
                inputs = outputs
        last = _rounded(1280 * width)
        self.features = nn.Sequential(*layers, *_convolution(inputs, last, 1), nn.SiLU(inplace=True))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, 1000))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of images and their classes."""
        found = self.classifier(self.features(images).mean((2, 3)))
        return F.cross_entropy(found, labels, label_smoothing=0.1)


class Inverted(nn.Module):
    """Widens, convolves each channel by itself, squeezes, narrows."""

    def __init__(self, inputs: int, expansion: int, outputs: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        widen = [*_convolution(inputs, wide, 1), nn.SiLU(inplace=True)] if expansion > 1 else []
        self.body = nn.Sequential(
            *widen,
            *_convolution(wide, wide, kernel, stride, wide),
            nn.SiLU(inplace=True),
            Squeeze(wide, inputs // 4, nn.SiLU),
            *_convolution(wide, outputs, 1),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.body(x) if self.shortcut else self.body(x)


class VNet(nn.Module):
    """V-Net with three levels and 3x3x3 kernels, as trained on volumes of the hippocampus; dice loss."""

    def __init__(self, channels: int = 16, classes: int = 3) -> None:
        super().__init__()
        self.first = _volume(1, channels)
        self.down = nn.ModuleList(
            nn.Sequential(_volume(channels << n, channels << n + 1, 2, 2), Chain(channels << n + 1)) for n in range(3)
        )
        wide = (8 * channels, 8 * channels, 4 * channels)  # joining doubles the channels
        self.up = nn.ModuleList(_upwards(inputs, channels << n) for inputs, n in zip(wide, (2, 1, 0), strict=True))
        self.joined = nn.ModuleList(Chain(channels << n + 1) for n in (2, 1))
        self.last = nn.Conv3d(channels, classes, 3, padding=1)

    def forward(self, volumes: Tensor, labels: Tensor) -> Tensor:
        """Dice loss of volumes (batch, 1, x, y, z) and the class of each voxel."""
        x = self.first(volumes) + volumes
        kept = [x]
        for block in self.down:
            x = block(x)
            kept.append(x)
        for upwards, joined, skipped in zip(self.up, self.joined, reversed(kept[1:3]), strict=False):
            x = joined(torch.cat([upwards(x), skipped], 1))
        found = self.last(self.up[2](x)).softmax(1)
        wanted = F.one_hot(labels, found.shape[1]).movedim(-1, 1)
        both = (found * wanted).sum((2, 3, 4))
        return 1 - (2 * both / (found.sum((2, 3, 4)) + wanted.sum((2, 3, 4)) + 1e-6)).mean()


class Chain(nn.Module):
    """Three convolutions of volumes with a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*(_volume(channels, channels) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        """The chain's output."""
        return x + self.body(x)


def _convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, padding: int | None = None
) -> tuple[nn.Module, nn.Module]:
    padding = kernel // 2 if padding is None else padding
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outputs)


def _volume(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    padding = kernel // 2 if stride == 1 else 0
    return nn.Sequential(nn.Conv3d(inputs, outputs, kernel, stride, padding), nn.BatchNorm3d(outputs), nn.ReLU())


def _upwards(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.ConvTranspose3d(inputs, outputs, 2, 2), nn.BatchNorm3d(outputs), nn.ReLU())


def _rounded(channels: float) -> int:
    """The number rounded to a multiple of 8, never more than 10 % less."""
    whole = max(8, int(channels + 4) // 8 * 8)
    return whole + 8 if whole < 0.9 * channels else whole
