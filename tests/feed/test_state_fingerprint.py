"""What items depend on and a pickle does not hold: a change of it makes another program for other machines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOW = """
import sys
import numbers_of
from stoker.feed.program import Program
from stoker.feed.purity.tiers import state_fingerprint

program = Program(
    dataset=numbers_of.Numbers(), collate_fn=list, worker_init_fn=None, is_iterable=False, auto_collation=True,
    drop_last=False, declared_workers=1,
)
print(state_fingerprint(program).hex())
numbers_of.double = lambda value: 3 * value
print(state_fingerprint(program).hex())
numbers_of.Numbers.SCALE = 2
print(state_fingerprint(program).hex())
"""
MODULE = """
def double(value):
    return 2 * value if value in {"a", "b", "c"} else value

class Numbers:
    SCALE = 1

    def __getitem__(self, index):
        return double(index) * self.SCALE
"""


def test_it_is_equal_in_two_processes_and_sees_functions_and_attributes_of_classes(tmp_path: Path) -> None:
    (tmp_path / "numbers_of.py").write_text(MODULE)
    shown = [
        subprocess.run(
            [sys.executable, "-c", SHOW], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert shown[0] == shown[1]
    assert len(set(shown[0])) == 3
    assert all(shown[0])
