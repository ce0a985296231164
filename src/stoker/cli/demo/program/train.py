"""Trains on JPEG images from a remote store. An ordinary PyTorch program that does not know about stoker.

Decoding is real. Two things are emulated by sleeping, so that the program runs alike on every machine: a read from
the store, and the training step of an accelerator.
"""

from __future__ import annotations

import argparse
import io
import time

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WIDTH, HEIGHT = 320, 240
OBJECTS, CLASSES = 120, 4
BATCH_SIZE = 8
CROP = 96


class RemoteStore:
    """Objects by number; reading one takes as long as from an object store."""

    def __init__(self, objects: list[bytes], read_s: float) -> None:
        self.objects = objects
        self.read_s = read_s

    def read(self, number: int) -> bytes:
        time.sleep(self.read_s)
        return self.objects[number]


class Images(Dataset[tuple[Tensor, int]]):
    """Pairs of a normalised image [3, 96, 96] and its class; each object of the store appears several times."""

    def __init__(self, store: RemoteStore, length: int) -> None:
        self.store = store
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number = index % len(self.store.objects)
        image = Image.open(io.BytesIO(self.store.read(number))).convert("RGB")
        left, top = (WIDTH - HEIGHT) // 2, 0
        image = image.resize((CROP, CROP), Image.Resampling.BILINEAR, box=(left, top, left + HEIGHT, top + HEIGHT))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, number % CLASSES


class EmulatedModel(nn.Module):
    """Sleeps as long as an accelerator would compute; a linear layer makes the loss follow the data."""

    def __init__(self, step_s: float) -> None:
        super().__init__()
        self.step_s = step_s
        self.linear = nn.Linear(3 * 8 * 8, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(self.step_s)
        stride = CROP // 8
        return self.linear(images[:, :, ::stride, ::stride].flatten(1))


def make_objects() -> list[bytes]:
    """JPEG files with large and small structures, like photographs; the class shows in the colour."""
    rng = np.random.default_rng(0)
    objects: list[bytes] = []
    for number in range(OBJECTS):
        image = np.zeros((HEIGHT, WIDTH, 3))
        for columns, strength in ((4, 90), (40, 60), (WIDTH, 12)):
            layer = rng.integers(0, 256, (columns * 3 // 4, columns, 3), dtype=np.uint8)
            scaled = Image.fromarray(layer).resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
            image += strength * (np.asarray(scaled) / 128.0 - 1)
        image[:, :, number % CLASSES % 3] += 25
        file = io.BytesIO()
        Image.fromarray(np.clip(image + 128, 0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
        objects.append(file.getvalue())
    return objects


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=120)
    parser.add_argument("--workers", type=int, default=2, help="num_workers of the DataLoader")
    parser.add_argument("--read-ms", type=float, default=40, help="time of an emulated read")
    parser.add_argument("--step-ms", type=float, default=40, help="time of an emulated step")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    images = Images(RemoteStore(make_objects(), arguments.read_ms / 1000), arguments.batches * BATCH_SIZE)
    loader = DataLoader(images, batch_size=BATCH_SIZE, shuffle=True, num_workers=arguments.workers)
    model = EmulatedModel(arguments.step_ms / 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    print(f"data: {len(images):,} JPEG images of {WIDTH} x {HEIGHT}, DataLoader(num_workers={loader.num_workers})")
    print(f"emulated: a read takes {arguments.read_ms:g} ms, a training step {arguments.step_ms:g} ms", flush=True)
    for step, (inputs, labels) in enumerate(loader, 1):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item()!r}", flush=True)


if __name__ == "__main__":
    main()
