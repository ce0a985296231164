"""Every code block of README and docs is run, in the order of its page, in a folder that the page has for itself.

``python`` blocks are run, except those that begin with a comment that names a file: they become that file, for later
blocks. Of ``console`` blocks the lines after ``$`` are run by a shell and must succeed. ``toml`` blocks become the
folder's ``pyproject.toml``. ``text`` blocks are shown, not run: output, and commands that install or need a network.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.warm import programs

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
QUICKSTART = ROOT / "docs" / "start" / "quickstart.md"
BORROWED = {"why_is_my_gpu_idle.md", "run.md"}
"""Pages that say that they work on the program of the quickstart."""
KINDS = {"python", "console", "toml", "text"}
BLOCK_LIMIT_S = 60.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file(self) -> str:
        """The file that the block becomes; empty when it is to be run."""
        named = re.match(r"# ([\w./-]+\.py)\n", self.text) if self.kind == "python" else None
        return named[1] if named else ""


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(page=page, line=line, kind=found[2], text=textwrap.dedent(found[3]))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.integration
@pytest.mark.slow("all commands of a page, one after another, as a reader types them")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.kind != "text" for block in blocks_of(page))], ids=name_of
)
def test_blocks_run(page: Path, tmp_path: Path) -> None:
    if page.name in BORROWED:
        for block in blocks_of(QUICKSTART):
            if block.file:
                (tmp_path / block.file).write_text(block.text)
    for block in blocks_of(page):
        run(block, tmp_path)


def run(block: Block, folder: Path) -> None:
    if block.kind == "text":
        return
    if block.kind == "toml":
        (folder / "pyproject.toml").write_text(block.text)
    elif block.file:
        (folder / block.file).write_text(block.text)
    elif block.kind == "python":
        (folder / "block.py").write_text(block.text)
        succeed([sys.executable, "block.py"], folder, block.where)
    else:
        commands = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
        assert commands, f"{block.where}: no line begins with `$ `"
        for command in commands:
            succeed(parsed(command), folder, f"{block.where}: {command}")


def parsed(command: str) -> list[str]:
    """What a shell makes of a command line; a shell itself where it has more to do than to split words."""
    words = [] if re.search(r"[^\w\s./:,=+'\"-]|^\S+=", command) else shlex.split(command)
    known = {"python": [], "stoker": ["-m", "stoker"], "torchrun": ["-m", "torch.distributed.run"]}
    if words and words[0] in known:
        return [sys.executable, *known[words[0]], *words[1:]]
    return ["bash", "-c", command]


def succeed(command: list[str], folder: Path, where: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # The README as a person types it; the other pages from a process that has torch loaded.
    forked = command[0] == sys.executable and not where.startswith("README.md")
    done = (programs if forked else subprocess).run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BLOCK_LIMIT_S,
        check=False,
    )
    said = done.stdout[-3000:] + done.stderr[-3000:]
    assert done.returncode == 0, f"{where} ended with status {done.returncode}:\n{said}"
    assert "Traceback" not in said, f"{where}:\n{said}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_are_of_known_kinds(page: Path) -> None:
    for block in blocks_of(page):
        assert block.kind in KINDS, f"{block.where}: `{block.kind}` is none of {sorted(KINDS)}"
    fences = re.findall(r"^ *```", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(fences) == 2 * len(list(blocks_of(page))), "a fence that is not closed is not run"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name}: nothing at {target}"
        assert not anchor or anchor in anchors_of(file), f"{page.name}: no heading for {target}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_program_of_the_readme_is_short() -> None:
    program = next(block for block in blocks_of(ROOT / "README.md") if block.file)
    assert len(program.text.splitlines()) - 1 < 15
