"""Two models: a small convolutional network, and the stand-in that an emulated accelerator trains."""

import time

import torch
from torch import nn


class SmallCNN(nn.Sequential):
    """Patches of 8x8 pixels, three convolutions, mean over the image."""

    def __init__(self, num_classes: int):
        super().__init__(
            nn.Conv2d(3, 32, kernel_size=8, stride=8),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.Conv2d(64, 128, kernel_size=3, stride=2, padding=1),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(128, num_classes),
        )


class EmulatedModel(nn.Module):
    """Sleeps as long as an accelerator would compute; a linear layer on 8x8 pixels makes the loss follow the data."""

    def __init__(self, num_classes: int, step_s: float):
        super().__init__()
        self.step_s = step_s
        self.linear = nn.Linear(3 * 8 * 8, num_classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        time.sleep(self.step_s)
        stride = images.shape[-1] // 8
        return self.linear(images[:, :, ::stride, ::stride][:, :, :8, :8].flatten(1))
