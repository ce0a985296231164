"""Tools as child processes: what they print, how they fail, when they take too long."""

import hashlib
import os
import sys
import time
from pathlib import Path

import pytest

from stoker.core.errors import MissingExtraError, ToolError
from stoker.deploy.tools.running import run_tool
from stoker.deploy.tools.synthesis import YOSYS
from stoker.deploy.tools.wasm import command_of, is_prepared, prepare
from tests.deploy.rtl.proofs.circuits import needs_yosys


def test_both_streams_are_returned(tmp_path: Path) -> None:
    program = "import os, sys; print('out', os.environ['KIND']); print('err', file=sys.stderr)"
    found = run_tool(
        [sys.executable, "-c", program], folder=tmp_path, limit_s=20, doing="testing", environ={"KIND": "x"}
    )
    assert set(found.splitlines()) == {"out x", "err"}


def test_a_failure_is_in_the_tools_words(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"must end with status 0 for placing, got 3:\nno room for 4 DSPs"):
        run_tool(
            [sys.executable, "-c", "print('no room for 4 DSPs'); raise SystemExit(3)"], folder=tmp_path, limit_s=20,
            doing="placing",
        )  # fmt: skip


def test_what_cannot_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"`no-such-tool` must run for placing, and cannot be started"):
        run_tool(["no-such-tool"], folder=tmp_path, limit_s=20, doing="placing")


def test_one_that_takes_too_long_is_ended_with_its_children(tmp_path: Path) -> None:
    program = (
        "import os, time; pid = os.fork(); open('child', 'w').write(str(pid)) if pid else None; time.sleep(600)"
    )  # fmt: skip
    begun = time.monotonic()
    with pytest.raises(ToolError, match=r"placing must take at most 1\.00 s; allow more with `--limit`"):
        run_tool([sys.executable, "-c", program], folder=tmp_path, limit_s=1.0, doing="placing")
    assert time.monotonic() - begun < 30
    child = int((tmp_path / "child").read_text())
    for _ in range(200):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            break
        time.sleep(0.01)
    else:
        os.kill(child, 9)
        pytest.fail("the child lives on")


def test_a_tool_is_prepared_if_its_own_code_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upgrade leaves the older one's in the cache."""
    package, cache = tmp_path / "yowasp_planted", tmp_path / "cache"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "planted.wasm").write_bytes(b"new")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("YOWASP_CACHE_DIR", str(cache))
    kept = cache / "yowasp_planted" / "planted.wasm"
    kept.mkdir(parents=True)
    (kept / hashlib.sha1(b"old").hexdigest()).write_bytes(b"code")
    assert not is_prepared("yowasp-planted")
    (kept / hashlib.sha1(b"new").hexdigest()).write_bytes(b"code")
    assert is_prepared("yowasp-planted")


@pytest.mark.integration
@needs_yosys
def test_the_digest_is_the_runtimes() -> None:
    """What it keeps is found: else each start would be taken for the first."""
    prepare(YOSYS)
    assert is_prepared(YOSYS)


def test_a_missing_tool_is_named_with_its_pip_line() -> None:
    with pytest.raises(MissingExtraError, match=r'`yowasp-nothing` is needed .* pip install "stoker\[hw\]"'):
        command_of("yowasp-nothing")
