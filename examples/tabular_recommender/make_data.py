"""Make Criteo-shaped click logs: a label, 13 counts and 26 hexadecimal categories a row, with gaps, as Parquet."""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

NUM_DENSE = 13
NUM_CATEGORIES = 26
ROW_GROUP = 512
DENSE = [f"I{i + 1}" for i in range(NUM_DENSE)]
CATEGORIES = [f"C{i + 1}" for i in range(NUM_CATEGORIES)]


def make_table(rows: int, rng: np.random.Generator) -> pa.Table:
    """Log-normal counts and Zipf-distributed categories; a few columns decide how likely a click is."""
    columns: dict[str, pa.Array] = {}
    score = np.full(rows, -1.0)
    for i, name in enumerate(DENSE):
        counts = rng.lognormal(mean=1 + i % 4, sigma=1.5, size=rows).astype(np.int64)
        missing = rng.random(rows) < 0.15
        columns[name] = pa.array(counts, mask=missing)
        if i < 4:
            score += np.where(missing, 0, 0.5 * (np.log1p(counts) - 1 - i % 4))
    for i, name in enumerate(CATEGORIES):
        ranks = rng.zipf(1.2, size=rows) % 10 ** (1 + i % 6)
        hashes = (ranks * 2654435761 + i * 40503) % 2**32  # spreads the ranks over 32 bits, as Criteo's hashes are
        missing = rng.random(rows) < 0.05
        columns[name] = pa.array([f"{value:08x}" for value in hashes], mask=missing)
        if i < 6:
            score += np.where(missing, 0, 1.5 * np.sin(ranks + i))
    clicks = rng.random(rows) < 1 / (1 + np.exp(-score))
    return pa.table({"label": clicks.astype(np.int8), **columns})


def make_data(work_dir: Path | None, rows: int, seed: int = 0, files: int = 4) -> Path:
    """A folder of ``files`` Parquet files with ``rows`` rows in all; made only if it is not there yet."""
    root = work_dir or Path(tempfile.gettempdir()) / f"pytorch-examples-{os.getuid()}"
    folder = root / f"clicks-{rows}-seed{seed}"
    if folder.is_dir():
        return folder
    rng = np.random.default_rng(seed)
    root.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed, so that an interrupted run or a second one never leaves half a folder behind.
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        for i in range(files):
            num_rows = rows // files + (i < rows % files)
            pq.write_table(make_table(num_rows, rng), new / f"part-{i:03d}.parquet", row_group_size=ROW_GROUP)
        try:
            new.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--work-dir", type=Path, help="where the folder is made, instead of the temp folder")
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print(make_data(args.work_dir, args.rows, args.seed))
