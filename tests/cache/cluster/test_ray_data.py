"""Ray Data, whose processes are Ray's own, reads through a ring: the same rows, and the store is read once."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

from tests.cache.cluster.started import Started
from tests.cache.s3_server import KEY, SECRET, S3Server

pytest.importorskip("ray")
pytest.importorskip("pandas")
pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]
PROGRAM = str(Path(__file__).with_name("ray_data_program.py"))
RUN_S = 150


@pytest.fixture
def server() -> Iterator[S3Server]:
    running = S3Server()
    yield running
    running.close()


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """A short path, since Ray's sockets lie below it; with the folder into which Ray writes the cluster's address."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        (Path(folder) / "ray").mkdir()
        yield folder


def fill(server: S3Server) -> int:
    """Puts a table and images there; their bytes."""
    draw = np.random.default_rng(0)
    objects: dict[str, bytes] = {}
    for part in range(4):
        numbers = range(part * 500, part * 500 + 500)
        file = io.BytesIO()
        pyarrow.parquet.write_table(
            pa.table({"number": list(numbers), "text": [draw.bytes(200).hex() for _ in numbers]}), file
        )
        objects[f"table/{part}.parquet"] = file.getvalue()
    for number in range(12):
        file = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (48, 48, 3), dtype=np.uint8)).save(file, "PNG")
        objects[f"images/{number}.png"] = file.getvalue()
    server.client.create_bucket(Bucket="data")
    for key, body in objects.items():
        server.client.put_object(Bucket="data", Key=key, Body=body)
    return sum(map(len, objects.values()))


def fetched(started: Started, join: str) -> list[int]:
    """Bytes that each worker has read from the store."""
    done = started.command("status", "--join", join, "--secret-file", str(started.secret), "--json")
    return [node["status"]["fetched_bytes"] for node in json.loads(done.stdout)["nodes"]]


@pytest.mark.timeout(400)
@pytest.mark.slow("starts two Ray nodes three times")
def test_the_same_rows_and_one_read_of_the_store(
    server: S3Server, started: Started, tmp_path: Path, ray_folder: str
) -> None:
    size = fill(server)
    started.environ |= {
        "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_EC2_METADATA_DISABLED": "true",
        "STOKER_CACHE_RULES": "s3://* 60s", "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": ray_folder,
    }  # fmt: skip
    nodes, join = started.nodes(2)
    for node in nodes:
        started.start(node, join, "--mount", "s3=s3://")
    for node in nodes:
        started.wait(node)

    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words, PROGRAM, "s3://data", ray_folder],
            cwd=tmp_path, env=started.environ, capture_output=True, text=True, timeout=RUN_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    plain = run()
    assert "table 2000 " in plain
    assert "images 12 " in plain
    assert fetched(started, join) == [0, 0]
    for number in range(2):
        cache = ("-m", "stoker", "run", "--quiet", f"--cache={tmp_path / f'cache-{number}'}", "--cache-join", join)
        assert run(*cache, "--cache-secret-file", str(started.secret)) == plain
        read = fetched(started, join)
        assert sum(read) == size  # both nodes and both runs: each byte was read once
        assert all(read)
