"""Models of URLs on this machine, from the side of a service: a process fetches and keeps each."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import msgspec

from stoker.core.errors import ServingError
from stoker.run.serving.sources import ModelForm, forms_of, remote_part

_LEAVES_S = 5.0


class Fetched(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says.

    Attributes:
        path: of the file or the folder; empty where it failed.
        error: why; empty where it did not.
    """

    path: str = ""
    error: str = ""


class FoundSource:
    """The forms of a model, and what keeps their files on this machine.

    Args:
        forms: of the model.
        process: that keeps what it fetched; None for files that were here.
    """

    def __init__(self, forms: list[ModelForm], process: asyncio.subprocess.Process | None = None) -> None:
        self.forms = forms
        self._process = process

    async def close(self) -> None:
        """Lets the files go."""
        process, self._process = self._process, None
        if process is not None:
            await _ended(process)


async def found_source(source: str, threads: int, *, behind: bool = False) -> FoundSource:
    """The forms of a model, fetched where it has a URL.

    Args:
        source: as `forms_of` takes it.
        threads: of an engine.
        behind: whether what answers requests meanwhile goes first; no progress is shown then.

    Raises:
        ConfigError: there is no model.
        ServingError: it cannot be fetched.
    """
    url = remote_part(source)[0]
    if not url:
        return FoundSource(forms_of(source, threads))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stoker.run.serving.fetch_main", "behind" if behind else "ahead",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(
            url.encode("utf-8", "surrogateescape") + b"\n"
        )  # all users see what a process was started with
        answer = await _answer(process.stdout, url)
        if answer.error:
            raise ServingError(answer.error)
        return FoundSource(forms_of(source, threads, Path(answer.path)), process)
    except BaseException:
        await _ended(process)
        raise


async def _answer(lines: asyncio.StreamReader, url: str) -> Fetched:
    try:
        line = await lines.readline()
    except ValueError:  # longer than the reader's bound
        raise ServingError(f"`{url}` must be a model that can be read here, and what reads it said too much") from None
    if not line.endswith(b"\n"):
        raise ServingError(f"`{url}` must be a model that can be read here, and what reads it ended")
    try:
        return msgspec.json.decode(line, type=Fetched)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ServingError(f"`{url}` must be a model that can be read here, and what reads it said {error}") from None


async def _ended(process: asyncio.subprocess.Process) -> None:
    """Ends it by its input, so that it removes its files; by force if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), _LEAVES_S)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
