import tomllib

import pytest

from stoker.perf.catalogue import catalogue, gpu, gpus_of
from stoker.perf.study.tables.rows import published


def test_every_published_row_names_a_gpu_and_a_precision_of_it() -> None:
    assert all(gpu(row.gpu).rate(row.precision) > 0 for row in published())


@pytest.mark.parametrize("card", catalogue().values(), ids=lambda card: card.name)
def test_figures_are_of_a_gpu(card) -> None:
    rates = [card.rates[name] for name in ("fp32", "tf32", "fp16") if name in card.rates]
    assert rates == sorted(rates)
    assert 5e12 < rates[0] < 1e14
    assert card.rates.get("fp16") == card.rates.get("bf16", card.rates.get("fp16"))
    assert 10e9 < card.memory_bytes < 300e9
    assert 200e9 < card.memory_bandwidth < 10e12
    assert card.nvlink == 0 or card.nvlink > 2 * card.pcie
    assert len(card.source) > 20


def test_unknown_names_say_what_is_known() -> None:
    with pytest.raises(ValueError, match=r"`gpu` must be one of M40, .*H100-SXM.*, got 'TPU'"):
        gpu("TPU")
    with pytest.raises(ValueError, match="`precision` of V100-16GB-SXM must be one of fp32, fp16, got 'bf16'"):
        gpu("V100-16GB-SXM").rate("bf16")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[X]\nfp32 = 1\n", r"\[X\] must have generation, memory"),
        (
            '[X]\ngeneration="x"\nmemory=1\nbandwidth=0\npcie=1\npower=1\nsource="x"\nfp32=1',
            r"\[X\] `bandwidth` must be a positive number of at most 1e\+09, got 0",
        ),
        ('[X]\ngeneration="x"\nmemory=1\nbandwidth=1\npcie=1\npower=1\nsource="x"', r"\[X\] must have a rate"),
    ],
)
def test_a_gpu_that_is_written_wrongly_is_named(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        gpus_of(tomllib.loads(text))
