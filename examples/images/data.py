"""JPEG photographs as a map-style dataset: find them (or cut them from two photographs), decode, augment, normalise."""

import math
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

try:
    import cv2

    cv2.setNumThreads(0)  # the loader's workers are the parallelism
except ImportError:
    cv2 = None
    from PIL import Image

SUFFIXES = {".jpg", ".jpeg"}
MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)

Sample = tuple[Path, int]
Transform = Callable[[np.ndarray, int], np.ndarray]


def decode(path: Path) -> np.ndarray:
    """The photograph as uint8 [height, width, 3], red first."""
    if cv2 is None:
        return np.asarray(Image.open(path).convert("RGB"))
    image = cv2.imread(str(path), cv2.IMREAD_COLOR)
    if image is None:
        raise ValueError(f"`{path}` is not a readable JPEG")
    return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)


def encode(path: Path, image: np.ndarray) -> None:
    if cv2 is None:
        Image.fromarray(image).save(path, quality=90)
    else:
        cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, 90])


def resize(image: np.ndarray, width: int, height: int) -> np.ndarray:
    if cv2 is None:
        return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR)


def random_resized_crop_and_flip(image: np.ndarray, size: int) -> np.ndarray:
    """A crop of 8 to 100 % of the area and aspect 3:4 to 4:3, resized to ``size``, mirrored half of the time."""
    height, width = image.shape[:2]
    for _ in range(10):
        area = height * width * torch.empty(1).uniform_(0.08, 1.0).item()
        aspect = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(torch.randint(0, height - h + 1, ()))
            left = int(torch.randint(0, width - w + 1, ()))
            image = resize(image[top : top + h, left : left + w], size, size)
            break
    else:
        image = centre_crop(image, size)
    return image[:, ::-1] if random.random() < 0.5 else image


def centre_crop(image: np.ndarray, size: int) -> np.ndarray:
    """The shorter side resized to 8/7 of ``size``, then the central square; draws no random number."""
    height, width = image.shape[:2]
    scale = size * 8 / 7 / min(height, width)
    image = resize(image, max(size, round(width * scale)), max(size, round(height * scale)))
    top, left = (image.shape[0] - size) // 2, (image.shape[1] - size) // 2
    return image[top : top + size, left : left + size]


class JpegDataset(Dataset):
    """Pairs of a normalised float32 image [3, size, size] and its label."""

    def __init__(self, samples: list[Sample], size: int, transform: Transform):
        self.samples = samples
        self.size = size
        self.transform = transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self.samples[index]
        image = self.transform(decode(path), self.size)
        image = (image.astype(np.float32) / 255 - MEAN) / STD
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), label


def find_images(folder: Path) -> tuple[list[Sample], list[str]]:
    """All photographs of a folder with their labels, and the names of the classes.

    The class is the sub-folder, or in a flat folder what stands before the first ``_`` of the file's name.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)
    if not paths:
        raise SystemExit(f"`--data` must be a folder with .jpg or .jpeg files, found none in {folder}")
    names = [p.stem.split("_")[0] if p.parent == folder else p.relative_to(folder).parts[0] for p in paths]
    classes = sorted(set(names))
    labels = {name: label for label, name in enumerate(classes)}
    return [(path, labels[name]) for path, name in zip(paths, names, strict=True)], classes


def cut_photographs(work_dir: Path | None, count: int) -> Path:
    """A folder of ``count`` JPEGs cut from scikit-learn's two photographs, one class per photograph and quadrant."""
    root = work_dir or Path(tempfile.gettempdir()) / f"pytorch-examples-{os.getuid()}"
    folder = root / f"photographs-{count}"
    if folder.is_dir():
        return folder
    try:
        from sklearn.datasets import load_sample_image
    except ImportError:
        raise SystemExit(
            "the photographs come from scikit-learn: pip install scikit-learn, or use --data DIR"
        ) from None
    rng = np.random.default_rng(0)
    photographs = {name: load_sample_image(f"{name}.jpg") for name in ("china", "flower")}
    root.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed, so that an interrupted run or a second one never leaves half a folder behind.
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        for i in range(count):
            name = ("china", "flower")[i % 2]
            quadrant = i // 2 % 4
            target = Path(scratch) / "new" / f"{name}{quadrant}" / f"{i:05d}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            encode(target, _cut(photographs[name], quadrant, rng))
        try:
            (Path(scratch) / "new").rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


def _cut(photograph: np.ndarray, quadrant: int, rng: np.random.Generator) -> np.ndarray:
    """Part of a quadrant, 60 to 100 % of its sides, at the usual size of ImageNet's photographs."""
    half_h, half_w = photograph.shape[0] // 2, photograph.shape[1] // 2
    h, w = (int(side * rng.uniform(0.6, 1.0)) for side in (half_h, half_w))
    top = quadrant // 2 * half_h + int(rng.integers(half_h - h + 1))
    left = quadrant % 2 * half_w + int(rng.integers(half_w - w + 1))
    return resize(photograph[top : top + h, left : left + w], 500, 375)
