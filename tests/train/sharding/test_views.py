"""What torch says of units whose outputs are views: silent of those that stoker shards, and of no others."""

from __future__ import annotations

import warnings

from torch import nn

from stoker.train.sharding.weights import allow_views


class FSDPBlock(nn.Module):
    """A class as FSDP2 makes one of a unit that stoker shards."""


def test_units_of_other_classes_are_still_warned_of() -> None:
    said = "FSDP2-wrapped module ({}) returned a view tensor. An in-place op on this view"
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        allow_views(FSDPBlock())
        for name in ("FSDPBlock", "FSDPBlocks", "FSDPOther", "FSDPBlock, FSDPOther"):
            warnings.warn(said.format(name), UserWarning, stacklevel=1)
    assert [str(each.message) for each in seen] == [
        said.format(name) for name in ("FSDPBlocks", "FSDPOther", "FSDPBlock, FSDPOther")
    ]
