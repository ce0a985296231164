"""Cells typed into IPython's shell: a loader, its report, and a sample that ends its workers."""

from __future__ import annotations

import sys

from IPython.core.interactiveshell import InteractiveShell

del sys.modules["__main__"].__file__  # as in a kernel
CELLS = [
    "import os, torch, stoker\nfrom torch.utils.data import DataLoader, Dataset",
    """class Rows(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        if index == fatal:
            os._exit(3)
        return torch.tensor(index)
fatal = None""",
    """with stoker.feeding(quiet=True) as feeding:
    for batch in DataLoader(Rows(), batch_size=2, num_workers=1):
        pass
print(feeding.report())""",
    """fatal = 13
try:
    with stoker.feeding(quiet=True):
        list(DataLoader(Rows(), batch_size=2, num_workers=1))
except RuntimeError as error:
    print(error)""",
]
shell = InteractiveShell.instance()
for cell in CELLS:
    shell.run_cell(cell, store_history=True).raise_error()
