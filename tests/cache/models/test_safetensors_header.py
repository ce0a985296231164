import json
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from stoker.cache.models.safetensors_header import LENGTH_BYTES, header_length, parse_header
from stoker.core.errors import ModelFileError


def parsed(data: bytes):
    length = header_length(data[:LENGTH_BYTES], "m", len(data))
    return parse_header(data[LENGTH_BYTES : LENGTH_BYTES + length], "m", len(data))


def written(header: object, tail: int = 0) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(tail)


def test_what_the_formats_own_writer_writes() -> None:
    tensors = {"b": torch.arange(6.0).view(2, 3), "a": torch.ones(3, dtype=torch.bfloat16), "none": torch.empty(0, 4)}
    data = save(tensors, metadata={"format": "pt"})
    header = parsed(data)
    assert header.metadata == {"format": "pt"}
    assert {tensor.name: tensor.shape for tensor in header.tensors} == {"b": (2, 3), "a": (3,), "none": (0, 4)}
    for tensor in header.tensors:
        assert data[tensor.start : tensor.end] == bytes(tensors[tensor.name].view(torch.uint8).numpy().tobytes())


def entry(start: int, end: int, shape: list[int], dtype: str = "F32") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "must have at most"),
        (b"\xff" * 16, "must have at most"),
        (struct.pack("<Q", 100) + b"{}", "fit into it"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
        (struct.pack("<Q", 2) + b"{x", "not a JSON object"),
        (written({"a": 3}), "must have dtype"),
        (written({"a": entry(0, 4, [1], "F3")}, 4), "none of BOOL"),
        (written({"a": entry(0, 8, [1])}, 8), "bytes of its shape"),
        (written({"a": entry(-4, 0, [1])}), "bytes of its shape"),
        (written({"a": entry(0, 4, [1]), "b": entry(8, 12, [1])}, 12), "must begin at byte"),
        (written({"a": entry(0, 4, [1]), "b": entry(0, 4, [1])}, 4), "must begin at byte"),
        (written({"a": entry(0, 4, [1])}, 8), "must end where the file does"),
        (written({"a": entry(0, 4, [1])}, 0), "must end where the file does"),
    ],
)
def test_what_does_not_add_up_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        parsed(data)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_header_or_one_error(data: bytes) -> None:
    try:
        parsed(data)
    except ModelFileError:
        pass


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from(["a", "dtype", "__metadata__"]), st.none() | st.integers() | st.lists(st.text()))
)
def test_any_object_is_a_header_or_one_error(header: dict[str, object]) -> None:
    try:
        parsed(written(header))
    except ModelFileError:
        pass
