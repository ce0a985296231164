"""What ranks record becomes a window of sizes; nothing of an earlier run, and nothing unsettled."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stoker.core.texts import to_json
from stoker.records import events
from stoker.records.runlog import events_name, header_name, read_run
from stoker.run.elastic.prior import exposed_seconds
from stoker.run.elastic.reading import RankRecords, size_window

HEADER = events.RunHeader(
    run_id="this", started_unix_s=100.0, argv=["train.py"], cwd="", python="", stoker="", torch="", numpy="",
    hostname="", cores=2, memory_bytes=1, accelerator="",
)  # fmt: skip


def progress(
    t_s: float, *, workers: int = 2, wait_s: float = 0.02, step_s: float = 0.1, away: int = 0
) -> events.Progress:
    """A rank's counters at a time: batches of 8 samples, each waited for and then computed with."""
    batches = int(t_s / (wait_s + step_s))
    return events.Progress(
        t_s=t_s,
        loader=0,
        iteration=0,
        batches=batches,
        samples=8 * batches,
        bytes=0,
        input_wait_s=wait_s * batches,
        h2d_s=0.0,
        compute_s=step_s * batches,
        other_s=0.0,
        starved_steps=batches if wait_s > 0.01 else 0,
        workers=workers,
        ready=0,
        capacity=4,
        worker_busy_s=0.05 * batches,
        worker_idle_s=0.5 * batches,
        worker_cpu_s=0.04 * batches,
        optimizer_steps=batches,
        delivered_s=(wait_s + step_s) * batches,
        away=away,
    )


OPENED = events.LoaderOpened(
    t_s=0.0, loader=0, site="train.py:1", dataset="D", length=None, batch_size=8, declared_workers=2, tier="elastic",
    reason="",
)  # fmt: skip


def write(folder: Path, rank: int, records: list[events.AnyEvent], run_id: str = "this") -> RankRecords:
    header = msgspec.structs.replace(HEADER, run_id=run_id, rank=rank)
    (folder / header_name(rank)).write_bytes(to_json(header))
    with (folder / events_name(rank)).open("ab") as file:
        file.writelines(to_json(record) + b"\n" for record in records)
    found = RankRecords(folder, rank, "this")
    found.read()
    return found


def course(**fields: float) -> list[events.AnyEvent]:
    return [OPENED, *(progress(float(second), **fields) for second in range(1, 12))]  # type: ignore[arg-type]


def test_two_ranks_of_which_one_waits_for_the_other(tmp_path: Path) -> None:
    """The second waits less for its input, and longer for the first, inside of its steps."""
    window = size_window(
        [write(tmp_path, 0, course()), write(tmp_path, 1, course(wait_s=0.005, step_s=0.115))], may_change=True
    )
    assert window is not None
    assert (window.workers, window.feeders, window.elastic, window.batch_samples) == (2, 4, True, 8.0)
    assert window.step_s == pytest.approx(0.1, rel=0.01)
    assert window.batches_per_s == pytest.approx(2 / 0.12, rel=0.01)
    assert window.item_s == pytest.approx(0.05, rel=0.01)
    assert window.item_cpu_s == pytest.approx(0.04, rel=0.01)
    assert not window.link_full


def test_other_machines_whose_batches_do_not_come(tmp_path: Path) -> None:
    window = size_window([write(tmp_path, 0, course(away=1, wait_s=0.2))], may_change=True)
    assert window is not None
    assert window.link_full


def test_batches_made_by_the_training_worker_itself(tmp_path: Path) -> None:
    window = size_window([write(tmp_path, 0, course(workers=0))], may_change=True)
    assert window is not None
    assert (window.feeders, window.item_s) == (0, pytest.approx(0.02, rel=0.01))


def test_a_loader_with_a_fixed_number_of_data_workers(tmp_path: Path) -> None:
    pinned = msgspec.structs.replace(OPENED, tier="pinned")
    window = size_window([write(tmp_path, 0, [pinned, *course()[1:]])], may_change=True)
    assert window is not None
    assert not window.elastic


def test_an_evaluation_is_not_training(tmp_path: Path) -> None:
    """The loader that was read last made no step of an optimizer."""
    evaluation = msgspec.structs.replace(progress(12.0, step_s=0.01), loader=1, optimizer_steps=0)
    window = size_window([write(tmp_path, 0, [*course(), evaluation])], may_change=True)
    assert window is not None
    assert window.step_s == pytest.approx(0.1, rel=0.01)


def test_the_first_step_of_an_optimizer_is_none_to_measure(tmp_path: Path) -> None:
    """It imports half of torch: what was delivered by then is left out."""
    late = events.TrainingStarted(t_s=9.0, resumed=False, gradient_bytes=1)
    assert size_window([write(tmp_path, 0, [late, *course()])], may_change=True) is None


def test_too_little(tmp_path: Path) -> None:
    rank = write(tmp_path, 0, course()[:4])
    assert size_window([rank], may_change=True) is None
    assert size_window([write(tmp_path, 0, course()), RankRecords(tmp_path, 1, "this")], may_change=True) is None


def test_data_workers_that_change_are_waited_for(tmp_path: Path) -> None:
    records = course()
    records[-1] = progress(11.0, workers=3)
    assert size_window([write(tmp_path, 0, records)], may_change=True) is None
    later: list[events.AnyEvent] = [progress(float(second), workers=3) for second in range(12, 16)]
    window = size_window([write(tmp_path, 0, later)], may_change=True)
    assert window is not None
    assert window.feeders == 3
    restless: list[events.AnyEvent] = [progress(float(second), workers=second % 2 + 2) for second in range(16, 80)]
    assert size_window([write(tmp_path, 0, restless)], may_change=True) is not None


def test_records_of_an_earlier_run_are_not_read(tmp_path: Path) -> None:
    rank = write(tmp_path, 0, course(), run_id="earlier")
    assert (rank.header, len(rank.progress)) == (None, 0)


def test_a_line_is_read_once_it_is_whole(tmp_path: Path) -> None:
    rank = write(tmp_path, 0, [])
    line = to_json(events.CheckpointSaved(t_s=1.0, path="/c", steps_since=1)) + b"\n"
    path = tmp_path / events_name(0)
    path.write_bytes(line[:9])
    rank.read()
    assert rank.checkpoints == 0
    with path.open("ab") as file:
        file.write(line[9:] + b'{"type":"unknown","t_s":1}\n')
    rank.read()
    assert (rank.checkpoints, rank.saved and rank.saved.path) == (1, "/c")


def test_what_the_launcher_adds_is_in_the_report(tmp_path: Path) -> None:
    from stoker.ui.report_text import render_text
    from stoker.ui.summary import summarise

    rank = write(tmp_path, 0, course())
    rank.tell(12.0, events.SizesChosen(t_s=0.0, workers=2, reason="2 training workers: more gain nothing"))
    assert "Ranks       2 training workers: more gain nothing" in render_text(summarise(read_run(tmp_path)))


class TestPrior:
    def test_gradients_of_a_large_model(self) -> None:
        exposed = exposed_seconds("NVIDIA A100-SXM4-80GB", 8 * 10**9, 0.01)
        seconds = [exposed(workers) for workers in range(1, 9)]
        assert seconds[0] == 0.0
        assert seconds == sorted(seconds)
        assert seconds[-1] > 0.01

    def test_the_form_that_is_not_told_is_the_fastest(self) -> None:
        told, faster = exposed_seconds("NVIDIA H100 80GB HBM3", 10**11, 0.1), exposed_seconds("H100", 10**11, 0.1)
        assert told(8) == faster(8) > 0.0

    @pytest.mark.parametrize("accelerator", ["", "cpu", "Some Other GPU"])
    def test_nothing_is_known(self, accelerator: str) -> None:
        assert exposed_seconds(accelerator, 10**10, 0.1)(8) == 0.0
