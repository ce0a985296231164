"""How far to read ahead, and which requests bring what is missing."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.names import PAGE_BYTES
from stoker.cache.reading.readahead import FIRST_PAGES, MAX_PAGES, TOTAL_PAGES, ReadaheadState, share
from stoker.cache.reading.request_planning import MAX_REQUEST_PAGES, bytes_of, requests_for, runs_of


def follow(reads: list[int], size: int) -> tuple[ReadaheadState, list[int]]:
    """The window after reads of single pages, and the pages that were asked for ahead."""
    window, asked = ReadaheadState(), []
    for page in reads:
        window = window.read(page, page)
        wanted = window.wanted(size)
        window = window.having_asked(wanted)
        asked += wanted
    return window, asked


def test_one_page_alone_asks_for_no_other() -> None:
    for page in (0, 5):
        assert follow([page, page, page], 100)[1] == []


def test_the_second_page_in_order_does() -> None:
    assert follow([0, 1], 100)[1] == list(range(2, 2 + FIRST_PAGES))


def test_a_reader_that_jumps_is_not_followed() -> None:
    assert follow([0, 7, 3, 90, 2], 100)[1] == []
    window, _ = follow([0, 1, 2, 3, 50], 100)
    assert window.ahead == 0


def test_a_large_read_counts_as_its_pages() -> None:
    window = ReadaheadState().read(0, 7).read(8, 15)
    assert window.ahead == 16


@given(st.integers(1, 300), st.integers(1, 300))
def test_reading_in_order_asks_for_each_page_at_most_once(size: int, read: int) -> None:
    read = min(size, read)
    window, asked = follow(list(range(read)), size)
    assert len(set(asked)) == len(asked)
    assert all(page < size for page in asked)
    assert window.ahead <= MAX_PAGES
    # A reader that stops has caused at most as much again as it read.
    assert len([page for page in asked if page >= read]) <= max(FIRST_PAGES, read)


@given(st.lists(st.integers(0, 40), max_size=60))
def test_any_reads_ask_only_for_pages_ahead_of_them(reads: list[int]) -> None:
    window = ReadaheadState()
    for page in reads:
        window = window.read(page, page)
        wanted = window.wanted(41)
        assert all(page < each < 41 for each in wanted)
        window = window.having_asked(wanted)


pages = st.sets(st.integers(0, 200), max_size=100).map(sorted)


@given(pages)
def test_runs_hold_neighbours_and_every_page_once(missing: list[int]) -> None:
    runs = runs_of(missing)
    assert [page for run in runs for page in run] == missing
    assert all(one.stop < other.start for one, other in itertools.pairwise(runs))


@given(pages, st.integers(1, 16))
def test_requests_hold_every_page_once_and_are_bounded(missing: list[int], parallel: int) -> None:
    requests = requests_for(missing, parallel)
    assert [page for request in requests for page in request] == missing
    assert all(0 < len(request) <= MAX_REQUEST_PAGES for request in requests)


def test_the_last_page_is_as_long_as_the_object_says() -> None:
    assert bytes_of(range(1, 3), 2 * PAGE_BYTES + 5) == (PAGE_BYTES, 2 * PAGE_BYTES + 5)


@given(st.lists(st.tuples(st.integers(0, 39), st.integers(0, MAX_PAGES), st.booleans()), max_size=300))
def test_all_files_together_have_no_more_ahead_than_is_allowed(steps: list[tuple[int, int, bool]]) -> None:
    files = [0] * 40
    for number, wanted, is_read in steps:
        others = [ahead for other, ahead in enumerate(files) if other != number]
        if is_read:
            files[number] = max(0, files[number] - wanted)
        else:
            files[number] = max(files[number], min(wanted, share(files[number], others)))
        assert sum(files) <= TOTAL_PAGES


def test_files_share_what_is_allowed_and_one_alone_has_its_whole_window() -> None:
    assert share(0, []) >= MAX_PAGES
    assert share(0, [16] * 4) == TOTAL_PAGES // 5
    assert share(0, [1] * 100) == FIRST_PAGES
    assert share(0, [TOTAL_PAGES]) == 0
