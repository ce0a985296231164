"""The loader contract: programs written against torch's own loader, run under torch's loader and under stoker's.

``table_*.py`` hold the cases, one function each, with torch's ``DataLoader`` alone; ``run.py`` runs cases in a process;
``compare.py`` runs them plain and under ``stoker run`` and compares; ``test_contract.py`` makes a test of each.

    python -m pytest -q tests/contract                     all cases
    python -m tests.contract.compare break_then_new_epoch  one case (or group, or process), differences shown
    python -m tests.contract.compare --against plain       shows that the cases themselves are deterministic
"""
