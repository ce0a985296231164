"""Torch has its methods back after stoker, but for those that somebody else has replaced since."""

import functools
from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader

from stoker.core.patching import patched
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings

STOCK = dict(vars(DataLoader))


@pytest.fixture
def serving() -> Iterator[Serving]:
    made = Serving(RunSettings(), [])
    yield made
    patch.remove()
    made.close()
    assert dict(vars(DataLoader)) == STOCK


def replaced() -> list[str]:
    return [
        name.rpartition("DataLoader.")[2] for names in patched().values() for name in names if "DataLoader." in name
    ]


def test_it_has_them_back(serving: Serving) -> None:
    patch.install(serving)
    patch.install(serving)
    assert sorted(replaced()) == ["__init__", "_get_iterator"]
    patch.remove()
    assert replaced() == []
    assert dict(vars(DataLoader)) == STOCK


def test_what_somebody_else_put_on_top_goes_on(serving: Serving, caplog: pytest.LogCaptureFixture) -> None:
    made: list[int] = []
    patch.install(serving)
    ours = DataLoader.__init__

    @functools.wraps(ours)
    def theirs(self, *args, **kwargs):  # as a library that looks over every loader
        made.append(1)
        ours(self, *args, **kwargs)

    DataLoader.__init__ = theirs
    patch.remove()
    assert (DataLoader.__init__, "DataLoader.__init__`" in caplog.text) == (theirs, True)
    assert vars(DataLoader)["_get_iterator"] is STOCK["_get_iterator"]
    assert (list(DataLoader([1, 2])), made) == ([1, 2], [1])
    DataLoader.__init__ = ours  # it goes, and so does ours at the next chance


def test_torchs_capsules_are_its_own_again_after_the_last_that_watches() -> None:
    import torch

    stock = torch.to_dlpack
    one, two = Serving(RunSettings(), []), Serving(RunSettings(), [])
    assert torch.to_dlpack is not stock
    one.close()
    assert torch.to_dlpack is not stock
    two.close()
    assert torch.to_dlpack is stock
