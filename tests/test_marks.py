"""Which files a run looks into, and what it leaves to `make test-all`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marks import EXHAUSTIVE, STAYS, is_exhaustive, may_match, unused

HERE = Path(__file__).parent
UNIT, INTEGRATION = "not integration and not exhaustive", "integration and not exhaustive"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def test(): ...", [UNIT]),
        ("pytestmark = pytest.mark.integration\n", [INTEGRATION]),
        ("pytestmark = [\n    pytest.mark.integration,\n    pytest.mark.timeout(3),\n]\n", [INTEGRATION]),
        ("@pytest.mark.integration\ndef test(): ...\n", [UNIT, INTEGRATION]),
        ("pytestmark = pytest.mark.timeout(3)\nparam(marks=pytest.mark.integration)\n", [UNIT, INTEGRATION]),
        (
            "pytestmark = pytest.mark.integration\n@pytest.mark.exhaustive\ndef test(): ...\n",
            [INTEGRATION, "exhaustive"],
        ),
        ("pytestmark = pytest.mark.exhaustive\n", ["exhaustive"]),
    ],
)
def test_files_are_chosen_by_the_marks_in_their_text(text: str, found: list[str], tmp_path: Path) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(text)
    assert [expression for expression in (UNIT, INTEGRATION, "exhaustive") if may_match(path, expression)] == found
    assert may_match(path, "")
    assert may_match(path, "slow"), "not one of the marks by which runs choose"


def test_the_tables_name_files_that_there_are() -> None:
    for line in (*EXHAUSTIVE, *STAYS):
        assert (HERE.parent / line.partition("::")[0]).is_file(), line
    assert [line for line in STAYS if "::Test" not in line and not line.startswith(tuple(EXHAUSTIVE))] == []


def test_representatives_stay() -> None:
    for line in STAYS:
        assert not is_exhaustive(line)
    assert is_exhaustive("tests/faults/test_leaks.py::test_changing_dataset")
    assert is_exhaustive("tests/faults/test_deaths.py::TestTemplate::test_killed[persistent-0]")
    assert not is_exhaustive("tests/faults/test_deaths.py::TestTemplate::test_killed[elastic-0]")
    assert not is_exhaustive("tests/faults/test_deaths.py::TestWorkers::test_at_random[persistent]")


def test_a_line_for_tests_that_are_no_more_is_named() -> None:
    tests = [f"{line}x" for line in (*EXHAUSTIVE, *STAYS)]
    assert unused(tests) == []
    assert unused(["tests/faults/test_leaks.py::test_other"]) == [
        "tests/faults/test_leaks.py::test_iterators_left_half_way[elastic]"
    ]
    assert unused(["tests/other.py::test"]) == []
