"""Feeding a real GPU: pinned batches of 38 MB against torch's DataLoader with as many workers, copies included.

Skipped with a line where there is no CUDA device. The step is a chain of matrix products of a stated time on the GPU;
nothing is emulated.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterable

import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.support.served import Stoker
from stoker.run.settings import RunSettings

BATCH, SHAPE = 64, (3, 224, 224)


class Images(Dataset[torch.Tensor]):
    """Float images that cost a copy each, so that the transport is what is measured."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._source = torch.randn(SHAPE)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._source + float(index)


def train(batches: Iterable[torch.Tensor], products: int) -> float:
    """Steps per second over one epoch, the first 20 left out."""
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    begun = done = 0.0
    steps = 0
    for step, batch in enumerate(batches):
        if step == 20:
            torch.cuda.synchronize()
            begun = time.perf_counter()
        images = batch.to("cuda", non_blocking=True)
        out = weight
        for _ in range(products):
            out = torch.tanh(out @ weight)
        (images.mean() + out.float().mean()).item()
        steps = step + 1
    torch.cuda.synchronize()
    done = time.perf_counter()
    return (steps - 20) / (done - begun)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="benchmarks.feed_cuda", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--workers", type=int, default=4)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("feed_cuda: skipped, no CUDA device")
        return
    steps, rounds = (120, 5) if options.quick else (300, 7)
    figures: dict[str, object] = {"device": torch.cuda.get_device_name(), "workers": options.workers}
    for name, products in (("copy only", 0), ("10 ms step", 40), ("25 ms step", 100)):
        rates: dict[str, list[float]] = {"torch": [], "stoker": [], "stoker auto": []}
        for _ in range(rounds):
            loader = DataLoader(Images(steps * BATCH), BATCH, num_workers=options.workers, pin_memory=True)
            rates["torch"].append(train(loader, products))
            for side, workers in (("stoker", options.workers), ("stoker auto", None)):
                stoker = Stoker(RunSettings.of(workers=workers))
                rates[side].append(train(stoker.iterate(loader), products))
                stoker.serving.close()
        ratios = [s / t for s, t in zip(rates["stoker"], rates["torch"], strict=True)]
        medians = {side: round(statistics.median(values), 2) for side, values in rates.items()}
        figures[name] = {"steps_per_s": medians, "ratio": round(statistics.median(ratios), 2)}
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:>11}: {medians} steps/s, stoker/torch {statistics.median(ratios):.2f} ({spread})", flush=True)
    if options.json:
        print(json.dumps({"bar": "feed_cuda", "figures": figures, "holds": True}))


if __name__ == "__main__":
    main()
