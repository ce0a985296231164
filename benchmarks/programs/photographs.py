"""Photographs for the benchmarks: where they come from, and the dataset that decodes and crops them."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch.utils.data import Dataset

NEARBY = Path(__file__).resolve().parents[3] / "shared" / "data" / "images"
"""Real photographs beside the checkout, where there are any."""
SIZE = 224
_NUM_CUT = 256

cv2.setNumThreads(0)  # the data workers are the parallelism, of all loaders alike


def find_photographs(folder: Path | None, count: int = _NUM_CUT) -> tuple[list[str], str]:
    """Paths of JPEG files and where they are from: ``folder``, beside the checkout, or cut from scikit-learn's."""
    if folder is None and NEARBY.is_dir():
        folder = NEARBY
    origin = f"photographs of {folder.name}/" if folder is not None else "pieces of scikit-learn's two photographs"
    if folder is None:
        from examples.images.data import cut_photographs  # pyright: ignore[reportMissingImports]

        folder = cut_photographs(None, count)
    paths = sorted(str(path) for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))
    if not paths:
        raise SystemExit(f"`--data` must be a folder with .jpg or .jpeg files, found none in {folder}")
    return paths, f"{len(paths)} {origin}"


class Photographs(Dataset[tuple[torch.Tensor, int]]):
    """Decoded JPEGs, cropped at random to 224 x 224, mirrored half of the time; float32 [3, 224, 224] and a label."""

    def __init__(self, paths: list[str], count: int) -> None:
        self._paths = paths
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        number = index % len(self._paths)
        image = cv2.imread(self._paths[number], cv2.IMREAD_COLOR)
        if image is None:
            raise ValueError(f"`{self._paths[number]}` is not a readable JPEG")
        return augmented(image), number


def augmented(image: np.ndarray[Any, Any]) -> torch.Tensor:
    """A random crop of a decoded photograph, as float32 [3, 224, 224] in 0 to 1."""
    top, left, height, width = crop_of(image.shape[0], image.shape[1])
    image = cv2.resize(image[top : top + height, left : left + width], (SIZE, SIZE))
    if random.random() < 0.5:
        image = cv2.flip(image, 1)
    channels = np.ascontiguousarray(image[:, :, ::-1].transpose(2, 0, 1))
    return torch.from_numpy(channels).float().div_(255.0)


def crop_of(height: int, width: int) -> tuple[int, int, int, int]:
    """Top, left, height and width of a crop of 8 to 100 % of the area with an aspect of 3:4 to 4:3."""
    for _ in range(10):
        area = height * width * random.uniform(0.08, 1.0)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, height - h), random.randint(0, width - w), h, w
    side = min(height, width)
    return (height - side) // 2, (width - side) // 2, side, side
