"""`stoker run --cache`: unchanged programs read through the cache, in all their processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stoker.cache.store.layout import noted_policy
from stoker.records.events import CacheUsed
from stoker.records.runlog import find_run, read_run
from tests.cache.s3_server import KEY, SECRET, S3Server
from tests.warm import programs

pytestmark = [pytest.mark.integration, pytest.mark.timeout(100)]

READ = """
import sys
import fsspec
print(len(fsspec.filesystem("s3").cat_file("run/a")))
"""
CHILDREN = """
import multiprocessing, subprocess, sys
def read(name):
    import fsspec
    with fsspec.open(f"s3://run/{name}") as file:
        assert len(file.read()) == 1000
if __name__ == "__main__":
    for method in ("spawn", "fork"):
        child = multiprocessing.get_context(method).Process(target=read, args=("a",))
        child.start()
        child.join()
        assert child.exitcode == 0
    subprocess.run([sys.executable, "-c", "import fsspec; fsspec.filesystem('s3').cat_file('run/a')"], check=True)
"""
ARROW = """
import pyarrow.parquet as pq
print(pq.read_table("s3://run/table.parquet").num_rows)
"""
TRAIN = """
import torch, fsspec
from torch.utils.data import DataLoader, Dataset
class Files(Dataset):
    fs = fsspec.filesystem("s3")
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.frombuffer(bytearray(self.fs.cat_file(f"run/{'ab'[index % 2]}")), dtype=torch.uint8)
for epoch in range(2):
    for batch in DataLoader(Files(), batch_size=2, num_workers=1):
        assert batch.shape == (2, 1000)
"""


@pytest.fixture(scope="module")
def environ(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    s3_server.client.create_bucket(Bucket="run")
    for name in "ab":
        s3_server.client.put_object(Bucket="run", Key=name, Body=name.encode() * 1000)
    keys = {"AWS_ENDPOINT_URL": s3_server.url, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    pages = str(tmp_path_factory.mktemp("cache") / "pages")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STOKER_")}
    return {**clean, **keys, "AWS_DEFAULT_REGION": "us-east-1", "STOKER_CACHE_DIR": pages}


def run(
    program: str, folder: Path, environ: dict[str, str], *options: str, start: Callable[..., Any] = programs.run
) -> subprocess.CompletedProcess[str]:
    (folder / "program.py").write_text(program)
    done = start(
        [sys.executable, "-m", "stoker", "run", "--cache", *options, "program.py"],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_a_program_without_loaders_gets_a_line(tmp_path: Path, environ: dict[str, str]) -> None:
    done = run(READ, tmp_path, environ)
    assert done.stdout == "1000\n"
    assert "stoker: cache: 0.98 KiB read, 0.0 % from the cache · 0.98 KiB from stores in 1 request" in done.stderr
    assert list((Path(environ["STOKER_CACHE_DIR"]) / "runs").iterdir()) == []


def test_children_of_all_kinds_read_through_it(tmp_path: Path, environ: dict[str, str]) -> None:
    own = {**environ, "STOKER_CACHE_DIR": str(tmp_path / "pages")}
    done = run(CHILDREN, tmp_path, own, "--cache-rules", "s3://run/* immutable")
    assert "2.93 KiB read, 66.7 % from the cache · 0.98 KiB from stores in 1 request" in done.stderr


def test_a_quiet_run_says_nothing(tmp_path: Path, environ: dict[str, str]) -> None:
    assert run("print(1)", tmp_path, environ, "--quiet").stderr == ""


def test_pyarrow_reads_through_it(tmp_path: Path, environ: dict[str, str], s3_server: S3Server) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(100))}), tmp_path / "table.parquet")
    s3_server.client.put_object(Bucket="run", Key="table.parquet", Body=(tmp_path / "table.parquet").read_bytes())
    done = run(ARROW, tmp_path, environ)
    assert done.stdout == "100\n"
    assert "stoker: cache:" in done.stderr


@pytest.mark.slow("two programs import torch")
def test_the_report_has_a_line_and_the_run_a_record(tmp_path: Path, environ: dict[str, str]) -> None:
    directory = tmp_path / "own"
    (tmp_path / "program.py").write_text(TRAIN)
    ended = programs.run(
        [sys.executable, "-m", "stoker", "run", f"--cache={directory}", "--run-dir", "records", "program.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "\nCache " in ended.stderr
    record = next(
        event for event in read_run(find_run(str(tmp_path / "records"))).events if isinstance(event, CacheUsed)
    )
    assert record.directory == str(directory)
    assert record.fetched_bytes == 2000
    assert record.asked_bytes >= 16_000
    assert record.hit_bytes >= 14_000


@pytest.mark.slow("two programs import torch")
def test_a_run_keeps_to_the_version_that_it_saw_first(
    tmp_path: Path, environ: dict[str, str], s3_server: S3Server
) -> None:
    s3_server.client.put_object(Bucket="run", Key="changing", Body=b"old")
    program = f"""
import fsspec
fs = fsspec.filesystem("s3")
first = fs.cat_file("run/changing")
from botocore.session import Session
Session().create_client("s3", endpoint_url={s3_server.url!r}).put_object(Bucket="run", Key="changing", Body=b"new!")
print(first, fs.cat_file("run/changing"))
"""
    assert run(program, tmp_path, environ, "--cache-rules", "s3://run/* 0s").stdout == "b'old' b'old'\n"
    after = run(READ.replace("run/a", "run/changing"), tmp_path, environ, "--cache-rules", "s3://run/* 0s")
    assert after.stdout == "4\n"
    assert "1 object had changed at the source, and the new version was read" in after.stderr


def test_without_the_option_nothing_is_routed(tmp_path: Path, environ: dict[str, str]) -> None:
    program = 'import fsspec, sys\nprint("stoker.cache.filesystem.routing" in sys.modules)\n'
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "program.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.stdout == "False\n"


def test_what_a_program_installs_reaches_its_spawned_children(tmp_path: Path, environ: dict[str, str]) -> None:
    main = 'if __name__ == "__main__":'
    program = CHILDREN.replace(main, f"{main}\n    import stoker\n    stoker.cache.install()")
    check = "assert type(fsspec.filesystem('s3')).__mro__[1].__name__ == 'RoutedAsync'"
    program = program.replace("    import fsspec\n", f"    import fsspec\n    {check}\n").replace(', "fork"', ",")
    program = program[: program.index("    subprocess.run")]
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--quiet", "program.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_a_directory_that_cannot_be_is_said_before_the_program_runs(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "program.py").write_text("print('ran')")
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "run", f"--cache={tmp_path / 'file'}", "program.py"],
        cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "must be a folder that can be written" in done.stderr


def test_a_change_during_the_run_is_said_at_once_and_once(
    tmp_path: Path, environ: dict[str, str], s3_server: S3Server
) -> None:
    s3_server.client.put_object(Bucket="run", Key="moving", Body=bytes(2 << 20))
    program = f"""
import sys, fsspec
from botocore.session import Session
fs = fsspec.filesystem("s3")
first = fs.cat_file("run/moving", 0, 10)
store = Session().create_client("s3", endpoint_url={s3_server.url!r})
for fill in b"12":
    store.put_object(Bucket="run", Key="moving", Body=bytes([fill]) * (2 << 20))
    print(fs.cat_file("run/moving", 1 << 20, (1 << 20) + 1), file=sys.stderr)
"""
    said = run(program, tmp_path, environ).stderr.splitlines()
    (told,) = [line for line in said if "s3://run/moving changed at its source during the run" in line]
    assert said.index(told) < said.index("b'1'")


@pytest.mark.parametrize("where", ["", "if os.fork() == 0:\n    own()\n    os._exit(0)\nos.wait()\n"])
def test_what_reads_around_the_cache_is_named_also_where_nothing_else_is_read(
    tmp_path: Path, environ: dict[str, str], where: str
) -> None:
    program = "import os\nimport pyarrow.fs\ndef own():\n    pyarrow.fs.S3FileSystem(connect_timeout=1.0)\n"
    said = run(program + (where or "own()\n"), tmp_path, environ).stderr
    assert "nothing was read through it · pyarrow.fs.S3FileSystem (program.py:4) may have read stores around it" in said
    assert list((Path(environ["STOKER_CACHE_DIR"]) / "runs").iterdir()) == []


def test_a_library_that_cannot_be_routed_is_named_where_nothing_that_can_is_imported(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    (tmp_path / "obstore.py").write_text("")  # stands for one that imports neither fsspec nor pyarrow
    # A new python: a fork of one that is warm has fsspec from the start.
    said = run("import obstore", tmp_path, environ, start=subprocess.run).stderr
    assert said == "stoker: cache: nothing was read through it · obstore may have read stores around it\n"


@pytest.mark.slow("two programs, each of which loads torch")
def test_a_model_is_kept_where_the_run_keeps_its_pages_and_is_in_its_report(
    tmp_path: Path, environ: dict[str, str], s3_server: S3Server
) -> None:
    import torch
    from safetensors.torch import save

    s3_server.client.put_object(Bucket="run", Key="model.safetensors", Body=save({"w": torch.ones(1 << 20)}))
    program = 'import stoker\nprint(stoker.cache.load_safetensors("s3://run/model.safetensors")["w"].sum())'
    directory = ("--cache", str(tmp_path / "own"))
    first, second = (run(program, tmp_path, environ, "=".join(directory)).stderr for _ in range(2))
    assert "4.00 MiB read, 0.0 % from the cache · 4.00 MiB from stores in" in first
    assert "4.00 MiB read, 100.0 % from the cache · 0 B from stores in 0 requests" in second


def test_stoker_urls_of_a_program_share_the_directory_of_the_run(tmp_path: Path, environ: dict[str, str]) -> None:
    program = (
        'import fsspec\nfor url in ("s3://run/a", "stoker://s3/run/a"):\n    print(len(fsspec.open(url).open().read()))'
    )
    said = run(program, tmp_path, environ, f"--cache={tmp_path / 'own'}")
    assert said.stdout == "1000\n1000\n"
    assert "1.95 KiB read, 50.0 % from the cache · 0.98 KiB from stores in 1 request" in said.stderr


def test_how_pages_go_is_said_by_an_option_and_holds_for_the_directory(tmp_path: Path, environ: dict[str, str]) -> None:
    directory = tmp_path / "own"
    run(READ, tmp_path, environ, f"--cache={directory}", "--cache-eviction", "s3fifo")
    run(READ, tmp_path, environ, f"--cache={directory}")
    assert noted_policy(directory) == "s3fifo"
    (tmp_path / "stoker.toml").write_text(f'[cache]\ndirectory = "{directory}"\neviction = "sieve"\n')
    done = subprocess.run(
        [sys.executable, "-m", "stoker", "cache", "status"],
        cwd=tmp_path, env={**environ, "STOKER_CACHE_DIR": ""}, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert noted_policy(directory) == "sieve"
