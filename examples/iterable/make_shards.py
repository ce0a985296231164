"""Make compressed shards of a stream of signals: a JSON object a line, with a noisy wave and the name of its shape."""

import argparse
import gzip
import json
import os
import tempfile
from pathlib import Path

import numpy as np

SHAPES = ("sine", "square", "sawtooth", "noise")
LENGTH = 256


def make_signal(shape: str, rng: np.random.Generator) -> np.ndarray:
    phase = (rng.uniform(2, 8) * np.arange(LENGTH) / LENGTH + rng.uniform()) % 1.0
    wave = {
        "sine": np.sin(2 * np.pi * phase),
        "square": np.where(phase < 0.5, 1.0, -1.0),
        "sawtooth": 2 * phase - 1,
        "noise": rng.normal(size=LENGTH),
    }[shape]
    return rng.uniform(0.5, 2) * wave + 0.5 * rng.normal(size=LENGTH)


def make_shards(work_dir: Path | None, shards: int, records: int, seed: int = 0) -> Path:
    """A folder of ``shards`` files with ``records`` signals each; made only if it is not there yet."""
    root = work_dir or Path(tempfile.gettempdir()) / f"pytorch-examples-{os.getuid()}"
    folder = root / f"signals-{shards}x{records}-seed{seed}"
    if folder.is_dir():
        return folder
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed, so that an interrupted run or a second one never leaves half a folder behind.
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        for shard in range(shards):
            with gzip.open(new / f"shard-{shard:03d}.jsonl.gz", "wt", compresslevel=1) as file:
                for i in range(records):
                    shape = SHAPES[rng.integers(len(SHAPES))]
                    signal = make_signal(shape, rng).round(3).tolist()
                    file.write(json.dumps({"id": shard * records + i, "shape": shape, "signal": signal}) + "\n")
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work-dir", type=Path, help="where the folder is made, instead of the temp folder")
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--records", type=int, default=1000, help="signals of a shard")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(make_shards(args.work_dir, args.shards, args.records, args.seed))
