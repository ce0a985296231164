"""Cases under torch's own loader and under stoker with workers on another machine: equal transcripts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.remote.hosts import opened

from .cases import CASES
from .compare import difference, run_both
from .elsewhere import COUNT_FILE

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
GROUPS = ("order", "lazy", "random", "options", "change", "values", "objects", "sizes", "lifetime", "errors", "context",
          "frameworks")  # fmt: skip
"""Streams (`iterable`, `datapipes`) stay here by design, as pinned loaders do in each group."""
LEFT_OUT = ("infinite_loader", "handles_of_workers")
"""Programs that see the number of workers, or what they draw ahead in the middle of an epoch: both are forced here."""
AS_DECLARED = ("order", "lazy", "options", "frameworks")
"""Groups whose programs see how much is drawn ahead: as many workers begin as are declared; of others, one."""
MADE_THERE = ("order", "lazy", "random", "options")
"""Groups with loaders that are long enough for another machine to make items; others' have two or three batches."""


@pytest.mark.slow("a host starts and is sent each case")
@pytest.mark.parametrize("group", GROUPS)
def test_equal_to_torch(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [case for case in CASES.values() if case.group == group and case.name not in LEFT_OUT]
    with opened(tmp_path) as host:
        monkeypatch.setenv("STOKER_BACKEND", f"static:{host.address}")
        monkeypatch.setenv("STOKER_REMOTE_SECRET_FILE", str(host.secret))
        if group not in AS_DECLARED:
            monkeypatch.setenv("STOKER_WORKERS", "1")
        monkeypatch.setenv("STOKER_REMOTE_WORKERS", "2")
        monkeypatch.setenv(COUNT_FILE, str(tmp_path / "away"))
        sides = run_both([case.name for case in chosen], "elsewhere", tmp_path)
    found = {case.name: difference(case, *sides) for case in chosen}
    assert not {name: text for name, text in found.items() if text}
    assert int((tmp_path / "away").read_text()) > 0 or group not in MADE_THERE
