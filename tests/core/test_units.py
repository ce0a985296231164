import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.units import format_bytes, format_count, format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("4096", 4096), ("1KiB", 1024), ("2GiB", 2 << 30), ("500 MB", 500_000_000), (" 1.5 gib ", 3 << 29)],
)
def test_parse_bytes(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1e9", "2 GiBs", "1 2", "0x10", "nan", "٣GiB"])
def test_parse_bytes_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        parse_bytes(text)


def test_parse_bytes_says_that_a_bare_letter_is_ambiguous() -> None:
    with pytest.raises(ValueError, match=r"`2g` is ambiguous: write `GiB` .* or `GB`"):
        parse_bytes("2g")


@given(st.integers(min_value=0, max_value=2**70))
def test_whole_bytes_are_exact(num_bytes: int) -> None:
    assert parse_bytes(str(num_bytes)) == num_bytes
    assert parse_bytes(f"{num_bytes}B") == num_bytes


@given(st.integers(min_value=0, max_value=2**60))
def test_shown_bytes_read_back_within_half_a_percent(num_bytes: int) -> None:
    shown = format_bytes(num_bytes)
    assert abs(parse_bytes(shown) - num_bytes) <= 0.0051 * num_bytes
    assert len(shown) <= len("1048576 TiB")


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.98 KiB"),
        (1536, "1.50 KiB"),
        (1023 * 1024, "1.00 MiB"),
        (3 << 40, "3.00 TiB"),
    ],
)
def test_format_bytes(num_bytes: int, shown: str) -> None:
    assert format_bytes(num_bytes) == shown


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60", 60), ("1.5s", 1.5), ("200 ms", 0.2), ("50us", 5e-5), ("2min", 120), ("1H", 3600), ("3d", 259200)],
)
def test_parse_seconds(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "-1s", "1m", "inf", "1:30"])
def test_parse_seconds_refuses(text: str) -> None:
    with pytest.raises(ValueError, match="`"):
        parse_seconds(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s"),
        (2.5e-6, "2.50 us"),
        (0.0021, "2.10 ms"),
        (0.99999, "1.00 s"),
        (12.34, "12.3 s"),
        (59.99, "1 min 00 s"),
        (200, "3 min 20 s"),
        (7500, "2 h 05 min"),
        (-1.5, "-1.50 s"),
        (math.inf, "inf s"),
    ],
)
def test_format_seconds(seconds: float, shown: str) -> None:
    assert format_seconds(seconds) == shown


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_seconds_never_show_in_powers_of_ten_nor_as_sixty(seconds: float) -> None:
    shown = format_seconds(seconds)
    assert "e" not in shown
    assert not shown.startswith(("1000 ", "60.0 s", "60 min"))
    assert " 60 " not in shown


def test_counts_have_a_noun_that_fits():
    assert [format_count(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert format_count(1200, "batch", "batches") == "1,200 batches"
