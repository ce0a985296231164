"""How often samples are made, as the quickstart tells people who print in a dataset."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.warm import programs

pytestmark = pytest.mark.integration

PROGRAM = """
import os, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self): return 300
    def __getitem__(self, index):
        os.write(1, b"made %d\\n" % index)
        time.sleep(0.004)
        return torch.tensor(index)

for batch in DataLoader(Rows(), batch_size=4, num_workers=int(sys.argv[1])): pass
"""


# Without workers, nothing is compared where the machine has no time to try any before the program is through.
@pytest.mark.parametrize(
    ("workers", "options", "again"),
    [(2, (), range(1, 9)), (2, ("--tier", "pinned"), [0]), (0, (), range(21)), (0, ("--tier", "pinned"), [0])],
)
def test_only_the_first_samples_are_made_again(
    workers: int, options: tuple[str, ...], again: range | list[int], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "stoker", "run", *options, "train.py", str(workers)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = programs.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=True)
    made = Counter(done.stdout.split("\n")[:-1])
    assert set(made) == {f"made {index}" for index in range(300)}
    repeated = {line: count for line, count in made.items() if count > 1}
    assert len(repeated) in again
    if workers:
        assert max(made.values()) <= 4
