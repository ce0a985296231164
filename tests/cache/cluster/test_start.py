"""`stoker cache start` with several directories, one of which cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.cache.names import ObjectName
from tests.cache.cluster.nodes import fetch
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def test_a_worker_of_several_directories_goes_on_without_a_damaged_one(started: Started, tmp_path: Path) -> None:
    dirs = tuple(tmp_path / name for name in ("a", "damaged", "b"))
    dirs[1].mkdir()
    (dirs[1] / "format").write_text("something else\n")
    (node,), join = started.nodes(1)
    started.start(node, join, "--size", "96MiB", dirs=dirs)
    said = started.wait(node)
    assert f"from {dirs[0]} and {dirs[2]}, up to 64.0 MiB" in said[0]
    assert "continues without" in said[1]
    client = started.client(join)
    for number in range(20):
        path = tmp_path / f"{number}.bin"
        path.write_bytes(bytes([number]) * 5000)
        assert fetch(client, ObjectName(FILES.namespace, str(path)), None, [(0, 5000)]) == ([True], [path.read_bytes()])
    status = started.command("status", "--join", join, "--secret-file", str(started.secret))
    assert f"{node}: {dirs[1]}: " in status.stdout.replace("\n", "")
    (told,) = json.loads(
        started.command("status", "--join", join, "--secret-file", str(started.secret), "--json").stdout
    )["nodes"]
    states = told["status"]["directories"]
    assert [state["state"] == "ok" for state in states] == [True, False, True]
    pages = [state.get("pages", 0) for state in states]
    assert sum(pages) == 20
    assert min(pages[0], pages[2]) > 0
    both = json.loads(started.command("status", "--dir", str(dirs[0]), "--dir", str(dirs[2]), "--json").stdout)
    assert [each["live"]["pages"] for each in both["directories"]] == [pages[0], pages[2]]


def test_sizes_are_for_all_directories_or_for_each(started: Started, tmp_path: Path) -> None:
    words = ("start", "--mount", "files=file://", *(f"--dir={tmp_path / name}" for name in "abc"))
    refused = started.command(*words, "--size", "1GB", "--size", "2GB")
    assert refused.returncode == 2
    assert "`--size` must be given once, or once for each --dir, got 2 sizes for 3 directories" in refused.stderr
