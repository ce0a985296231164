from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.names import PAGE_BYTES
from stoker.cache.reading.request_planning import MAX_REQUEST_PAGES
from stoker.cache.warm.warm_plan import (
    MOST_FAILURES_KEPT,
    Account,
    WarmObject,
    has_magic,
    manifest_urls,
    num_pieces,
    page_bytes,
    pieces_of,
)

sizes = st.lists(st.integers(0, 40 * PAGE_BYTES), max_size=12)


@given(sizes)
def test_pieces_cover_each_byte_of_each_object_once(found: list[int]) -> None:
    items = [WarmObject(str(number), size) for number, size in enumerate(found)]
    pieces = list(pieces_of(items))
    for number, item in enumerate(items):
        own = [piece.pages for piece in pieces if piece.item == number]
        assert len(own) == num_pieces(item.size)
        assert sum(page_bytes(pages, item.size) for pages in own) == item.size
        assert [index for pages in own for index in pages] == list(range(-(-item.size // PAGE_BYTES)))
        assert all(len(pages) <= MAX_REQUEST_PAGES for pages in own)


@given(st.lists(st.sampled_from(["present", "fetched", "refused", "failed", "uncached"])), st.integers(0, 5))
def test_the_parts_of_an_account_add_up(outcomes: list[str], left: int) -> None:
    account = Account()
    items = [WarmObject(str(number), 10) for number in range(len(outcomes) + left)]
    account.plan(items)
    for item, outcome in zip(items, outcomes, strict=False):
        account.end(item, outcome, "why")  # type: ignore[arg-type]
    assert account.unfinished == left
    assert account.is_complete == (not left and set(outcomes) <= {"present", "fetched"})


def test_what_went_since_makes_an_account_incomplete() -> None:
    account = Account()
    account.plan([WarmObject("a", 3)])
    account.end(WarmObject("a", 3), "fetched")
    assert account.is_complete
    account.evicted.add(3)
    assert not account.is_complete


def test_failures_are_all_counted_and_the_first_kept() -> None:
    account = Account()
    for number in range(MOST_FAILURES_KEPT + 5):
        account.end(WarmObject(str(number), 1), "failed", "no")
    assert account.failed.objects == MOST_FAILURES_KEPT + 5
    assert len(account.failures) == MOST_FAILURES_KEPT
    assert account.failures[0] == ("0", "no")


def test_a_manifest_has_comments_and_blank_lines() -> None:
    assert manifest_urls(["# mine", "", " s3://a/b \n", "s3://a/c#1"]) == ["s3://a/b", "s3://a/c#1"]


def test_patterns() -> None:
    assert has_magic("s3://a/*.bin")
    assert not has_magic("s3://a/b")
