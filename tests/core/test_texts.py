"""Text that is no UTF-8 is kept, escaped, wherever it goes."""

from __future__ import annotations

import json
from pathlib import Path

from stoker.core.texts import escaped, to_json
from stoker.records import events
from stoker.records.runlog import RunLog
from stoker.run.settings import RunSettings

NAME = "tr\udce4in.py"  # as python reads b"tr\xe4in.py"


def test_escaped() -> None:
    assert escaped(NAME) == r"tr\xe4in.py"
    assert escaped("Größe 1 €") == "Größe 1 €"
    assert escaped("\ud800 of no file") == r"\ud800 of no file"


def test_a_record_in_any_place() -> None:
    found = json.loads(to_json({"a": [NAME, 1, None], NAME: (1.5, {"b": NAME})}))
    assert found == {"a": [r"tr\xe4in.py", 1, None], r"tr\xe4in.py": [1.5, {"b": r"tr\xe4in.py"}]}


def test_a_run_goes_on_being_recorded(tmp_path: Path) -> None:
    said: list[str] = []
    log = RunLog(tmp_path / "ru\udcfc", lambda: header(), notify=said.append)
    log.on_event(events.Notice(t_s=0.0, text=f"a notice of {NAME}"))
    log.close()
    assert not said
    assert r"a notice of tr\\xe4in.py" in (tmp_path / "ru\udcfc" / "events.jsonl").read_text()


def test_settings_reach_the_program_as_they_are() -> None:
    settings = RunSettings.of(run_dir="ru\udcfc")
    assert RunSettings.from_json(settings.to_json()) == settings


def header() -> events.RunHeader:
    return events.RunHeader(
        run_id="a", started_unix_s=0.0, argv=[NAME], cwd=".", python="3", stoker="0", torch="2", numpy="2",
        hostname="h", cores=2.0, memory_bytes=1, accelerator="", rank=0, world_size=1, local_world_size=1, config={},
    )  # fmt: skip
