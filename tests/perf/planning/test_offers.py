"""Price lists: what they may say, and how their mistakes are named."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from stoker.core.errors import ConfigError
from stoker.perf.catalogue import catalogue
from stoker.perf.planning.offers import only, prices_of, read_gpus, read_prices, without_prices

EXAMPLE = Path(__file__).parents[3] / "examples" / "plan" / "prices.toml"
LIST = """
currency = "EUR"
date = 2026-01-31

[[offer]]
gpu = "T4"
per_hour = 0.5

[[offer]]
name = "big"
gpu = "H100-SXM"
gpus = 8
per_hour = 30
cores = 192
network_gbps = 400
max_servers = 4
"""


def test_a_list_has_offers_and_says_where_they_are_from() -> None:
    found = prices_of(tomllib.loads(LIST), "ours.toml", catalogue())
    small, big = found.offers
    assert (found.currency, found.date, found.source) == ("EUR", "2026-01-31", "ours.toml")
    assert (small.name, small.gpus, small.cores, small.max_servers) == ("8x T4", 8, None, None)
    assert (big.network, big.cores, big.source) == (50e9, 192, "ours.toml")
    assert big.servers(8) == 1
    assert big.servers(9) == 2


def test_counts_are_parts_of_a_server_then_whole_ones() -> None:
    small, big = prices_of(tomllib.loads(LIST), "ours.toml", catalogue()).offers
    assert big.counts(64) == [1, 2, 4, 8, 16, 24, 32]
    assert small.counts(64) == [1, 2, 4, 8, 16, 24, 32, 48, 64]
    assert small.counts(5) == [1, 2, 4]


def test_the_example_is_dated_sourced_and_known_to_the_catalogue() -> None:
    prices = read_prices(EXAMPLE)
    assert prices.date
    assert all(any(digit in offer.source for digit in "2026") for offer in prices.offers)
    assert len(prices.offers) >= 8


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("currency", "monney"), "`monney` of the list must be one of currency, date, source, offer"),
        (
            ("per_hour = 0.5", 'per_hour = "0.5"'),
            "`per_hour` of offer 1 must be a positive number of at most 1e+09",
        ),
        (
            ("per_hour = 30", "per_hour = -3"),
            "(big) must be a positive number of at most 1e+09, got -3",
        ),
        (
            ("per_hour = 30", "per_hour = nan"),
            "(big) must be a positive number of at most 1e+09, got nan",
        ),
        (
            ("per_hour = 30", f"per_hour = 1{'0' * 400}"),
            "`per_hour` of offer 2 (big) must be a positive number of at most",
        ),
        (("per_hour = 30", "per_hour = inf"), "`per_hour` of offer 2 (big) must be a positive number of at most"),
        (
            ("gpus = 8", "gpus = 1e300"),
            "`gpus` of offer 2 (big) must be a positive number of at most",
        ),
        (("per_hour = 0.5", ""), "`per_hour` of offer 1 is missing"),
        (("gpus = 8", "gpus = 1.5"), "`gpus` of offer 2 (big) must be a whole number, got 1.5"),
        (("cores", "core"), "`core` of offer 2 (big) must be one of name, gpu, gpus"),
        (('"T4"', '"T44"'), "`gpu` of offer 1 must be one of M40, P100-SXM"),
        (('"T4"', '"T44"'), "another is added with --gpus FILE"),
        (('"T4"', "4"), "`gpu` of offer 1 must be a text, got 4"),
        (("2026-01-31", "31"), "`date` of the list must be a date, got 31"),
        (('"EUR"', "EUR"), "prices.toml` must be TOML: Invalid value (at line "),
        (('"EUR"', "[" * 5000), "prices.toml` must be TOML: "),
        (('"EUR"', "1" * 5000), "prices.toml` must be TOML: "),
    ],
)
def test_a_mistake_is_named_by_offer_key_and_value(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(LIST.replace(*change), encoding="utf-8")
    with pytest.raises(ConfigError) as error:
        read_prices(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_a_list_without_offers_or_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"one \[\[offer\]\] or more, got none"):
        read_prices(path)
    path.write_text("offer = 3", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"`offer` of the list must be one \[\[offer\]\] or more, got 3"):
        read_prices(path)
    path.write_text("offer = [3]", encoding="utf-8")
    with pytest.raises(ConfigError, match="offer 1 must be a table"):
        read_prices(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="must be TOML in UTF-8"):
        read_prices(path)
    with pytest.raises(ConfigError, match="must be a file that can be read"):
        read_prices(tmp_path)


def test_gpus_of_ones_own_join_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "gpus.toml"
    path.write_text(
        '[NEW]\ngeneration = "x"\nbf16 = 1000\nmemory = 100\nbandwidth = 2000\npcie = 64\npower = 700\n'
        'source = "a data sheet"',
        encoding="utf-8",
    )
    known = read_gpus(path)
    assert known["NEW"].memory_bytes == 100e9
    assert set(catalogue()) < set(known)
    path.write_text('[NEW]\ngeneration = "x"', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\[NEW\] must have memory, bandwidth"):
        read_gpus(path)
    whole = {"generation": '"x"', "bf16": 1, "memory": 1, "bandwidth": 1, "pcie": 1, "power": 1, "source": '"x"'}
    for key, value in (("memory", "true"), ("memory", "inf"), ("power", "1" * 400), ("source", 3)):
        path.write_text("[NEW]\n" + "\n".join(f"{k} = {v}" for k, v in {**whole, key: value}.items()), encoding="utf-8")
        with pytest.raises(ConfigError, match=rf"\[NEW\] `{key}` must be a "):
            read_gpus(path)
    for text, said in (("NEW = 3", "`NEW` must be a table"), ("NEW", "gpus.toml` must be TOML: ")):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError, match=said):
            read_gpus(path)


def test_without_prices_hours_of_gpus_are_counted() -> None:
    prices = without_prices()
    assert not prices.is_money
    assert {(offer.per_hour, offer.by_gpu) for offer in prices.offers} == {(1.0, True)}
    assert [offer.gpu.name for offer in only(prices, ["T4"]).offers] == ["T4"]
    with pytest.raises(ValueError, match="`--gpu` must be one of"):
        only(prices, ["T5"])
