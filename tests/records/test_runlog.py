"""The run folder: written lazily and quietly, read back tolerantly, found by a person's words."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from stoker.core.errors import RunFolderError
from stoker.records.events import FORMAT, Event, Notice, RunEnded, RunHeader, WorkersChanged
from stoker.records.runlog import RunLog, find_run, latest_run, read_ranks, read_run


def make_header(run_id: str = "r1", *, rank: int = 0, started: float = 1.7e9) -> RunHeader:
    return RunHeader(
        run_id=run_id,
        started_unix_s=started,
        argv=["train.py"],
        cwd="/home/me",
        python="3.11.2",
        stoker="0.1.0",
        torch="2.13.0",
        numpy="2.3.0",
        hostname="host",
        cores=2.0,
        memory_bytes=8 << 30,
        accelerator="",
        rank=rank,
        world_size=2,
    )


def make_run(folder: Path, *events: Event, header: RunHeader | None = None) -> Path:
    log = RunLog(folder, header or make_header())
    for event in events or (Notice(t_s=1.0, text="hello"),):
        log.on_event(event)
    log.close()
    return folder


def test_nothing_is_created_before_the_first_event(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run", make_header())
    log.close()
    assert not (tmp_path / "run").exists()


def test_records_come_back_in_the_order_of_time(tmp_path: Path) -> None:
    late, early = RunEnded(t_s=3.0, outcome="finished"), Notice(t_s=1.0, text="a line\nof two")
    run = read_run(make_run(tmp_path / "run", late, early))
    assert run.events == [early, late]
    assert run.header == make_header()
    assert run.skipped == 0


def test_header_may_be_made_at_the_first_event(tmp_path: Path) -> None:
    asked: list[int] = []

    def header() -> RunHeader:
        asked.append(1)
        return make_header()

    log = RunLog(tmp_path / "run", header)
    assert not asked
    log(Notice(t_s=0.0, text="x"))
    log(Notice(t_s=0.0, text="y"))
    log.close()
    assert len(asked) == 1


@pytest.mark.parametrize(
    "tail", [b'{"type":"notice","t_s":2.0,"te', b'{"type":"from_the_future","t_s":2.0}\n', b"\xff\n"]
)
def test_torn_and_unknown_lines_are_counted_not_raised(tmp_path: Path, tail: bytes) -> None:
    folder = make_run(tmp_path / "run")
    with (folder / "events.jsonl").open("ab") as file:
        file.write(tail)
    run = read_run(folder)
    assert len(run.events) == 1
    assert run.skipped == 1


def test_run_without_records_is_readable(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "events.jsonl").unlink()
    assert read_run(folder).events == []


def test_newer_format_is_refused_with_the_remedy(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    content = msgspec.json.decode((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(msgspec.json.encode({**content, "format": FORMAT + 1, "new": []}))
    with pytest.raises(RunFolderError, match=rf"format {FORMAT + 1}.*pip install -U stoker"):
        read_run(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1}', b"\xff\xfe"])
def test_damaged_header_is_named(tmp_path: Path, content: bytes) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "run.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"run\.json"):
        read_run(folder)


def test_ranks_are_kept_apart_and_selectable(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_run(folder, Notice(t_s=1.0, text="zero"))
    make_run(folder, Notice(t_s=1.0, text="one"), header=make_header(rank=1))
    assert [run.header.rank for run in read_ranks(folder)] == [0, 1]
    assert read_run(folder).ranks == (0, 1)
    assert read_run(folder, 1).events == [Notice(t_s=1.0, text="one")]
    with pytest.raises(RunFolderError, match=r"`--rank` must be one of 0, 1 .* got 7"):
        read_run(folder, 7)


def test_second_run_in_the_same_folder_sets_the_first_aside(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make_run(folder, Notice(t_s=1.0, text="old"), header=make_header("first", started=1.0))
    make_run(folder, Notice(t_s=1.0, text="old"), header=make_header("first", rank=1, started=1.0))
    make_run(folder, Notice(t_s=1.0, text="new"), header=make_header("second", started=2.0))
    run = read_run(folder)
    assert run.events == [Notice(t_s=1.0, text="new")]
    assert run.ranks == (0,)
    assert (folder / "earlier-first-events.jsonl").exists()


def test_second_process_of_a_rank_stays_silent(tmp_path: Path) -> None:
    said: list[str] = []
    first = RunLog(tmp_path / "run", make_header())
    second = RunLog(tmp_path / "run", make_header(), notify=said.append)
    first.on_event(Notice(t_s=0.0, text="first"))
    second.on_event(Notice(t_s=0.0, text="second"))
    first.close()
    second.close()
    assert read_run(tmp_path / "run").events == [Notice(t_s=0.0, text="first")]
    assert not said


def test_later_process_of_a_rank_has_a_folder_of_its_own(tmp_path: Path) -> None:
    """A program that starts programs, one after another."""
    for number in range(3):
        make_run(tmp_path / "run", Notice(t_s=0.0, text=str(number)))
    for number, name in enumerate(("run", "run-2", "run-3")):
        assert read_run(tmp_path / name).events == [Notice(t_s=0.0, text=str(number))]


def test_log_says_what_became_of_it(tmp_path: Path) -> None:
    said: list[str] = []
    first, second = (RunLog(tmp_path / "run", make_header()) for _ in range(2))
    for log in (first, second):
        log.on_event(Notice(t_s=0.0, text="x"))
    (tmp_path / "file").write_text("in the way")
    third = RunLog(tmp_path / "file" / "run", make_header(), notify=said.append)
    third.on_event(Notice(t_s=0.0, text="x"))
    assert [(log.silent, log.failed) for log in (first, second, third)] == [
        (False, False),
        (True, False),
        (False, True),
    ]
    assert len(said) == 1
    first.close()


def test_full_disk_makes_the_log_quiet_after_one_notice(tmp_path: Path) -> None:
    said: list[str] = []
    folder = tmp_path / "run"
    folder.mkdir()
    # Every write to this device fails with ENOSPC: a full disk that needs no disk.
    (folder / "events.jsonl").symlink_to("/dev/full")
    log = RunLog(folder, make_header(), notify=said.append)
    for _ in range(3):
        log.on_event(Notice(t_s=0.0, text="x"))
    log.close()
    assert len(said) == 1
    assert "continues without it" in said[0]


def test_folder_that_cannot_be_made_never_raises(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    log = RunLog(tmp_path / "file" / "run", make_header())
    log.on_event(Notice(t_s=0.0, text="x"))
    log.on_event(Notice(t_s=0.0, text="x"))
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_forked_child_writes_nothing(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run", make_header())
    log.on_event(Notice(t_s=0.0, text="parent"))
    pid = os.fork()
    if pid == 0:
        log.on_event(Notice(t_s=0.0, text="child"))
        log.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    log.on_event(Notice(t_s=1.0, text="parent"))
    log.close()
    assert [event.text for event in read_run(tmp_path / "run").events if isinstance(event, Notice)] == ["parent"] * 2


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    log = RunLog(tmp_path / "run", make_header())

    def write(number: int) -> None:
        for step in range(200):
            log.on_event(WorkersChanged(t_s=step, loader=number, workers=1, depth=2, reason="r" * 100 * number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    run = read_run(tmp_path / "run")
    assert (len(run.events), run.skipped) == (800, 0)


def test_run_is_found_by_path_name_or_as_the_latest(tmp_path: Path) -> None:
    root = tmp_path / "stoker-runs"
    old = make_run(root / "a", header=make_header(started=2.0e9))
    new = make_run(root / "b", header=make_header(started=2.1e9))
    os.utime(old / "run.json")
    assert latest_run(root) == new
    assert find_run(None, root) == new
    assert find_run(old.name, root) == old
    assert find_run(str(old), root) == old
    assert find_run(str(old / "run.json"), root) == old
    assert find_run(str(root), root) == new
    assert (root / ".gitignore").read_text() == "*\n"


def test_missing_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="holds no run; make one with `stoker run"):
        find_run(None, tmp_path / "stoker-runs")
    with pytest.raises(RunFolderError, match="`nope` is not a run folder"):
        find_run("nope", tmp_path)
    with pytest.raises(RunFolderError, match=r"holds no `run\.json`"):
        read_run(tmp_path)
    with pytest.raises(RunFolderError, match="is not a folder"):
        read_run(tmp_path / "nope")
