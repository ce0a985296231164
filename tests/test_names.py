"""No two public classes have one name, no folder holds more modules than a reader keeps in mind; planted cases fail."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src/stoker"
VOCABULARY = ("feed/state/events.py", "feed/state/instructions.py")
"""What happens, and what is to be done: written with their module, as ``ev.Failed`` and ``do.Lease``."""
MOST_MODULES = 16
FULLER = {"ui": 39}
"""Folders with more modules: none gets one added, and one that has few enough leaves this list."""


def twice(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Public classes of a module's top level by name, where several modules have one."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path, text in sorted(sources.items()):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(path)
    return {name: paths for name, paths in found.items() if len(paths) > 1}


def over_full(paths: Iterable[str]) -> dict[str, int]:
    """Folders by their number of modules, those that only re-export not counted, where it is too large."""
    counts = Counter(str(Path(path).parent) for path in paths if not path.endswith("__init__.py"))
    return {folder: count for folder, count in counts.items() if count > MOST_MODULES}


@pytest.fixture(scope="module")
def sources() -> dict[str, str]:
    return {str(path.relative_to(SOURCE)): path.read_text() for path in SOURCE.rglob("*.py")}


def test_no_two_public_classes_have_one_name(sources: dict[str, str]) -> None:
    assert len(sources) > 300
    assert twice({path: text for path, text in sources.items() if not path.startswith(VOCABULARY)}) == {}


def test_no_folder_is_over_full(sources: dict[str, str]) -> None:
    found = over_full(sources)
    assert found.keys() == FULLER.keys(), "take those that are not over-full any more off `FULLER`"
    assert {folder: count for folder, count in found.items() if count > FULLER[folder]} == {}


def test_planted_cases_are_found() -> None:
    sources = {
        "a/one.py": "class Found: ...\nclass _Own: ...",
        "b/two.py": "class Found(int): ...\nclass _Own: ...\ndef make():\n    class Inner: ...",
        "b/three.py": "class Inner: ...",
    }
    assert twice(sources) == {"Found": ["a/one.py", "b/two.py"]}
    modules = [f"full/m{number}.py" for number in range(MOST_MODULES)]
    assert over_full([*modules, "full/__init__.py"]) == {}
    assert over_full([*modules, "full/one_more.py"]) == {"full": MOST_MODULES + 1}
