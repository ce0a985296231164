"""Hosts read through their machine's cache, in the run's ring: same rows, one read of the store."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.remote.caching import shipped_cache
from stoker.backends.remote.host.caching import here
from stoker.cache.settings import CacheSettings, ClusterSettings
from stoker.records.events import Notice, Progress
from stoker.records.runlog import read_run
from tests.backends.remote.hosts import opened
from tests.cache.run.conftest import s3_server  # noqa: F401
from tests.cache.run.test_cluster import Cluster
from tests.cache.s3_server import KEY, SECRET, S3Server
from tests.warm import programs

OBJECTS, OBJECT_BYTES = 64, 40_000
PROGRAM = f"""
import time
import fsspec
import torch
from torch.utils.data import DataLoader, Dataset

class Objects(Dataset):
    def __len__(self):
        return {OBJECTS}

    def __getitem__(self, index):
        data = fsspec.filesystem("s3").cat_file(f"remote/{{index}}")
        time.sleep(0.03)
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

if __name__ == "__main__":
    for epoch in range(3):
        for number, batch in enumerate(DataLoader(Objects(), batch_size=4, num_workers=1)):
            wanted = torch.arange(4 * number, 4 * number + 4, dtype=torch.uint8)
            assert torch.equal(batch, wanted[:, None].expand(4, {OBJECT_BYTES}))
"""


@pytest.fixture
def ring(s3_server: S3Server, tmp_path: Path) -> Iterator[Cluster]:  # noqa: F811
    s3_server.client.create_bucket(Bucket="remote")
    for number in range(OBJECTS):
        s3_server.client.put_object(Bucket="remote", Key=str(number), Body=bytes([number]) * OBJECT_BYTES)
    keys = {"AWS_ENDPOINT_URL": s3_server.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    running = Cluster(tmp_path, {**clean, **keys, "AWS_DEFAULT_REGION": "us-east-1"})
    yield running
    running.close()


@pytest.mark.integration
@pytest.mark.timeout(150)
@pytest.mark.slow("two nodes of a cache, two hosts, and a program that waits for both")
def test_two_hosts_and_the_program_read_the_store_once(
    ring: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    pages = [tmp_path / f"pages-{number}" for number in range(2)]
    monkeypatch.setenv("STOKER_CACHE_DIR", str(pages[0]))
    with opened(tmp_path) as first:
        monkeypatch.setenv("STOKER_CACHE_DIR", str(pages[1]))
        with opened(tmp_path) as second:
            done = programs.run(
                [
                    *(sys.executable, "-m", "stoker", "run", "--run-dir", str(tmp_path / "run")),
                    *("--backend", f"static:{first.address},{second.address}", "--workers", "1"),
                    *("--remote-secret-file", str(first.secret), "--remote-workers", "4"),
                    *("--remote-env", "AWS_ENDPOINT_URL,AWS_ACCESS_KEY_ID,AWS_SECRET_ACCESS_KEY,AWS_DEFAULT_REGION"),
                    *(f"--cache={tmp_path / 'own'}", "--cache-rules", "s3://* immutable", "--cache-size", "64MiB"),
                    *("--cache-join", ring.join, "--cache-secret-file", str(ring.secret), "program.py"),
                ],
                cwd=tmp_path, env=ring.environ, capture_output=True, text=True, timeout=120, check=False,
            )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = read_run(tmp_path / "run").events
    assert max(event.items_away for event in events if isinstance(event, Progress)) > 0
    assert not [event.text for event in events if isinstance(event, Notice) and "directly" in event.text]
    assert sum(ring.told("fetched_bytes")) == OBJECTS * OBJECT_BYTES, "each object is read from the store once"
    for place in pages:
        assert sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) > OBJECT_BYTES


def test_a_host_has_its_own_directory_and_the_runs_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOKER_CACHE_DIR", str(tmp_path / "there"))
    (tmp_path / "secret").write_bytes(b"some secret of the ring\n")
    cluster = ClusterSettings(join="static:a:7070,b:7070", secret_file=str(tmp_path / "secret"))
    settings = CacheSettings(directory=str(tmp_path / "here"), limit_bytes=1 << 30, cluster=cluster)
    shipped = shipped_cache(settings)
    assert shipped.secret == b"some secret of the ring\n"
    found = here(CacheSettings.from_json(shipped.settings), shipped)
    assert found.directory == str(tmp_path / "there")
    assert (found.limit_bytes, found.cluster.join) == (1 << 30, "static:a:7070,b:7070")
    assert found.cluster.secret_file is not None
    assert Path(found.cluster.secret_file).read_bytes() == shipped.secret
    assert Path(found.cluster.secret_file).stat().st_mode & 0o777 == 0o600


def test_no_secret_goes_along_without_a_ring(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"some secret of the ring\n")
    assert shipped_cache(CacheSettings(directory=str(tmp_path))).secret is None
