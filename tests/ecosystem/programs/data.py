"""What the programs train on: small pictures under transforms in the manner of torchvision, and a small model."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, picture):
        for transform in self.transforms:
            picture = transform(picture)
        return picture


class CenterCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, picture):
        top = (picture.shape[0] - self.size) // 2
        left = (picture.shape[1] - self.size) // 2
        return picture[top : top + self.size, left : left + self.size]


class RandomHorizontalFlip(nn.Module):
    """Draws from torch's main stream, as torchvision's does, whatever the chance."""

    def __init__(self, chance):
        super().__init__()
        self.chance = chance

    def forward(self, picture):
        return picture.flip(1) if torch.rand(1).item() < self.chance else picture


class ToTensor:
    def __call__(self, picture):
        return torch.from_numpy(np.ascontiguousarray(picture)).permute(2, 0, 1).float().div(255)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]

    def __call__(self, picture):
        return (picture - self.mean) / self.std


class Pictures(Dataset):
    """Pictures [3, 8, 8] that follow from their index, in four classes."""

    def __init__(self, count=24, flip=None):
        self.count = count
        self.epoch = 0
        flips = [] if flip is None else [RandomHorizontalFlip(flip)]
        self.transform = Compose([CenterCrop(8), ToTensor(), *flips, Normalize([0.5] * 3, [0.25] * 3)])

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        noise = np.random.default_rng(1000 * self.epoch + index)
        label = index % 4
        picture = noise.integers(0, 64, (12, 12, 3), dtype=np.uint8)
        picture[:, label * 3 : label * 3 + 3] += 128
        return self.transform(picture), label


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 4))
