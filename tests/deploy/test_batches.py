"""Parts of batches, whatever holds them."""

from typing import Any

import pytest

from stoker.deploy.batches import parts_of


@pytest.mark.parametrize("batch", [("image", "label"), ["image", "label"], {"x": "image", "y": "label"}])
def test_parts_of_what_holds_several(batch: Any) -> None:
    assert parts_of(batch) == ["image", "label"]


def test_a_dict_is_taken_in_the_order_of_the_arguments() -> None:
    assert parts_of({"label": 3, "item": 2, "user": 1}, ["user", "item", "scale"]) == [1, 2, 3]


def test_one_argument_is_a_part_itself() -> None:
    assert parts_of(7) == [7]
