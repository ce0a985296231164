"""Any bytes give a request that fits the model, or a refusal that says why; arrays survive both encodings."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from stoker.serve.engine import ANY, Interface, TensorSpec
from stoker.serve.protocol import requests
from stoker.serve.protocol.answers import answer
from stoker.serve.protocol.datatypes import DTYPES, name_of
from stoker.serve.protocol.requests import InferRequest, RequestParser
from stoker.serve.refusals import RequestRefused

F4 = np.dtype("<f4")
MODEL = Interface(
    (TensorSpec("x", F4, (ANY, 3)), TensorSpec("mask", np.dtype("?"), (ANY,))),
    (TensorSpec("y", F4, (ANY, 3)),),
    "test",
)


def request(**changes: Any) -> dict[str, Any]:
    x = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4.5, 5, 6]}
    mask = {"name": "mask", "shape": [2], "datatype": "BOOL", "data": [True, False]}
    return {"inputs": [x | changes.pop("x", {}), mask | changes.pop("mask", {})], **changes}


def parsed(content: dict[str, Any], tail: bytes = b"", interface: Interface = MODEL) -> Any:
    head = msgspec.json.encode(content)
    return RequestParser(interface, 8).parse(head + tail, len(head) if tail else None)


def test_json_flat_and_nested() -> None:
    found = parsed(request(id="a"))
    assert (found.id, found.samples, found.outputs) == ("a", 2, [("y", False)])
    np.testing.assert_array_equal(found.inputs[0], np.array([[1, 2, 3], [4.5, 5, 6]], F4))
    nested = parsed(request(x={"data": [[1, 2, 3], [4.5, 5, 6]]}))
    np.testing.assert_array_equal(nested.inputs[0], found.inputs[0])


@pytest.mark.parametrize("outputs", [{}, {"outputs": [{"name": "y", "parameters": {"binary_data": False}}]}])
def test_outputs_as_asked(outputs: dict[str, Any]) -> None:
    found = parsed(request(parameters={"binary_data_output": True}, **outputs))
    assert found.outputs == [("y", not outputs)]


def test_time_that_the_client_gives() -> None:
    assert parsed(request(parameters={"timeout": 2500})).timeout_s == pytest.approx(2.5e-3)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({}, "inputs"),
        ({"inputs": []}, "x, mask is missing"),
        (request(x={"name": "z"}), "got `z`"),
        (request(mask={"name": "x"}), "each once"),
        (request(x={"datatype": "FP64"}), "must be FP32, got FP64"),
        (request(x={"datatype": "BYTES"}), "must be one of BOOL"),
        (request(x={"shape": [2, 4]}), r"must be \[-1, 3\]"),
        (request(x={"shape": [0, 3]}), r"must be \[-1, 3\]"),
        (request(x={"shape": [-1, 3]}), r"must be \[-1, 3\]"),
        (request(x={"shape": [1, 3]}), "must have 3 numbers"),
        (request(x={"shape": [1, 3], "data": [1, 2, 3]}), "same number of samples"),
        (request(x={"shape": [9, 3], "data": [0] * 27}, mask={"shape": [9], "data": [True] * 9}), "at most 8"),
        (request(x={"data": ["1"] * 6}), "must be numbers of FP32"),
        (request(x={"data": None}), "must be numbers of FP32"),
        (request(mask={"data": [0, 1]}), "must be numbers of BOOL"),
        (request(id="a" * 300), "at most 256"),
        (request(outputs=[{"name": "z"}]), "`outputs` must be some of y"),
        (request(outputs=[{"name": "y"}, {"name": "y"}]), "each once"),
        (request(outputs=[{"name": "y", "parameters": {"classification": 2}}]), "`y` must be without `classification`"),
        (request(x={"parameters": {"shared_memory_region": "r"}}), "`x` must be without `shared_memory_region`"),
        (request(parameters={"timeout": 0}), "positive whole number"),
        (request(parameters={"timeout": True}), "positive whole number"),
    ],
)
def test_what_does_not_fit_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused, match=words) as caught:
        parsed(content)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("size", "tail", "words"),
    [
        (24, bytes(23), "sum to the 23 bytes after the JSON, got 24"),
        (23, bytes(24), "must be 24 bytes"),
        (True, bytes(24), "must be 24 bytes"),
        (24, bytes(25), "sum to the 25 bytes after the JSON, got 24"),
        (-24, bytes(24), "must be 24 bytes"),
    ],
)
def test_wrong_sizes_of_binary_tensors_are_refused(size: Any, tail: bytes, words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        parsed(request(x={"parameters": {"binary_data_size": size}}), tail)


def binary(x: list[float], mask: list[bool]) -> tuple[bytes, int]:
    sizes = {
        name: {"parameters": {"binary_data_size": size}} for name, size in (("x", 4 * len(x)), ("mask", len(mask)))
    }
    head = msgspec.json.encode(request(**sizes))
    return head + np.array(x, F4).tobytes() + bytes(mask), len(head)


def test_requests_of_one_form_have_their_own_numbers_and_are_all_checked() -> None:
    """The JSON is read once; what follows it is not."""
    parser = RequestParser(MODEL, 8)
    for number in range(3):
        body, head = binary([number] * 6, [True, False])
        found = parser.parse(body, head)
        np.testing.assert_array_equal(found.inputs[0], np.full((2, 3), number, F4))
        np.testing.assert_array_equal(found.inputs[1], [True, False])
    for wrong, words in ((body[:-1], "sum to the 25"), (body + b"\0", "sum to the 27"), (body[:-1] + b"\2", "0 and 1")):
        with pytest.raises(RequestRefused, match=words):
            parser.parse(wrong, head)


def test_forms_without_end_do_not_fill_memory() -> None:
    parser = RequestParser(MODEL, 8)
    body, head = binary([0] * 6, [True, False])
    for number in range(500):
        spaced = body[:1] + b" " * number + body[1:]
        parser.parse(spaced, head + number)
    assert 0 < parser.num_known <= 64


@pytest.mark.parametrize("length", [-1, 10**6])
def test_a_wrong_length_of_the_json_is_refused(length: int) -> None:
    with pytest.raises(RequestRefused, match="Inference-Header-Content-Length"):
        RequestParser(MODEL, 8).parse(msgspec.json.encode(request()), length)


@pytest.mark.parametrize("data", [[300], [-1], [1.5], [2**70]])
def test_integers_out_of_range_are_refused(data: list[Any]) -> None:
    byte = Interface((TensorSpec("x", np.dtype("u1"), (ANY,)),), (TensorSpec("y", F4, (ANY,)),), "test")
    content = {"inputs": [{"name": "x", "shape": [1], "datatype": "UINT8", "data": data}]}
    with pytest.raises(RequestRefused, match="UINT8"):
        parsed(content, interface=byte)


@pytest.mark.parametrize("data", [[1e39, 0.0], [[1e39, 0.0]], [1, 10**39]])
def test_floats_out_of_range_are_refused(data: list[Any]) -> None:
    """They would be infinite, which no JSON says."""
    with pytest.raises(RequestRefused, match="out of its range"):
        parsed({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": data}]}, interface=PAIRS)


ROWS = Interface(
    (TensorSpec("rows", np.dtype("<i8"), (ANY, 2), (0, 49)),), (TensorSpec("y", F4, (ANY,)),), "test"
)  # fmt: skip


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize(("data", "found"), [([3, 50], 50), ([-1, 4], -1), ([0, 2**62], 2**62), ([0, 49], None)])
def test_numbers_that_the_model_does_not_take_are_refused(data: list[int], found: int | None, binary: bool) -> None:
    """An engine would raise for them, and count as one that fails."""
    given: dict[str, Any] = {"name": "rows", "shape": [1, 2], "datatype": "INT64"}
    given |= {"parameters": {"binary_data_size": 16}} if binary else {"data": data}
    tail = np.array(data, "<i8").tobytes() if binary else b""
    if found is None:
        np.testing.assert_array_equal(parsed({"inputs": [given]}, tail, ROWS).inputs[0], [data])
        return
    with pytest.raises(RequestRefused, match=f"`rows` must hold numbers from 0 to 49, got {found}") as caught:
        parsed({"inputs": [given]}, tail, ROWS)
    assert caught.value.status == 400


def test_a_range_is_one_of_whole_numbers() -> None:
    for dtype, values in ((F4, (0, 1)), (np.dtype("<i8"), (1, 0))):
        with pytest.raises(ValueError, match="`values` of `x` must be the least and the largest"):
            TensorSpec("x", dtype, (ANY,), values)


@pytest.mark.parametrize(
    ("values", "takes_all"), [(None, True), ((0, 49), True), ((0, 99), True), ((0, 48), False), ((1, 49), False)]
)
def test_a_new_version_takes_what_the_old_one_does(values: tuple[int, int] | None, takes_all: bool) -> None:
    (old,) = ROWS.inputs
    assert TensorSpec("rows", old.dtype, old.shape, values).takes_all_of(old) == takes_all


MANY = 1 << 17
"""Bytes of a large JSON."""


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": [1] * MANY}, "must have 2 numbers for shape .* got 131072"),
        ({"data": [[1] * MANY, [1] * MANY]}, "must have 2 numbers for shape .* got 262144"),
        ({"data": ["1" * MANY, 1]}, "must take at most 65664 bytes for 2 numbers"),
        ({"shape": [1] * MANY}, "`shape of `inputs`` must take at most"),
        ({"parameters": {str(number): 1 for number in range(MANY // 8)}}, "`parameters of `inputs`` must take"),
    ],
)
def test_large_json_is_refused_before_its_numbers_are_read(
    changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be made in the event loop, while all others wait."""
    given = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2], **changes}
    monkeypatch.setattr(requests, "_numbers", {})
    with pytest.raises(RequestRefused, match=words):
        parsed({"inputs": [given]}, interface=PAIRS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"inputs": [], "outputs": [{"name": "y"}] * MANY}, "`outputs` must take at most"),
        ({"inputs": [], "parameters": {"a": "b" * MANY}}, "`parameters` must take at most"),
        ({"inputs": [{}] * MANY}, "at most 1024 objects, got 131072"),
    ],
)
def test_large_json_of_anything_else_is_refused(content: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestRefused, match=words):
        parsed(content, interface=PAIRS)


@pytest.mark.parametrize("hidden", ['"inputs":[%s],"inputs":[%s]', '"inputs":[%s],"more":1,"\\u0069nputs":[%s]'])
def test_keys_that_come_twice_do_not_hide_what_is_large(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last counts, and objects were made of both."""
    monkeypatch.setattr(requests, "_decoder", None)
    small = '{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}'
    text = "{" + hidden % (",".join([small] * 20_000), small) + "}"
    with pytest.raises(RequestRefused, match="`body` must have at most 1048576 bytes around the `data`"):
        RequestParser(PAIRS, 8).parse(text.encode(), None)
    twice = small.replace('"data":', f'"data":[{"1," * 600_000}1],"data":')
    with pytest.raises(RequestRefused, match="`body` must have at most 1048576 bytes around the `data`"):
        RequestParser(PAIRS, 8).parse(b'{"inputs":[%s]}' % twice.encode(), None)


def test_large_json_that_fits_is_read() -> None:
    values = np.arange(40_000, dtype=F4).reshape(5, 8000)
    wide = Interface((TensorSpec("x", F4, (ANY, 8000)),), (TensorSpec("y", F4, (ANY,)),), "test")
    for data in (values.reshape(-1).tolist(), values.tolist()):
        content = {"inputs": [{"name": "x", "shape": [5, 8000], "datatype": "FP32", "data": data}]}
        text = msgspec.json.format(msgspec.json.encode(content), indent=8)
        assert len(text) > MANY
        np.testing.assert_array_equal(RequestParser(wide, 8).parse(text, None).inputs[0], values)


PAIRS = Interface((TensorSpec("x", F4, (ANY, 2)),), (TensorSpec("y", F4, (ANY,)),), "test")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@given(st.data())
def test_any_change_of_a_request_gives_a_request_or_a_refusal(data: st.DataObject) -> None:
    content = request()
    key = data.draw(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]))
    content["inputs"][data.draw(st.integers(0, 1))][key] = data.draw(JSON)
    content[data.draw(st.sampled_from(["id", "parameters", "outputs", "more"]))] = data.draw(JSON)
    text = bytearray(msgspec.json.encode(content)) + data.draw(st.binary(max_size=30))
    for _ in range(data.draw(st.integers(0, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    length = data.draw(st.none() | st.integers(-1, len(text) + 1))
    try:
        found = RequestParser(MODEL, 8).parse(bytes(text), length)
    except RequestRefused:
        return
    assert [array.dtype for array in found.inputs] == [spec.dtype for spec in MODEL.inputs]
    assert all(spec.fits(array.shape) for spec, array in zip(MODEL.inputs, found.inputs, strict=True))


@given(
    st.sampled_from(sorted(DTYPES)).flatmap(
        lambda name: arrays.arrays(DTYPES[name], arrays.array_shapes(max_dims=3, max_side=4))
    ),
    st.booleans(),
)
def test_arrays_survive(array: NDArray[Any], binary: bool) -> None:
    if array.dtype.kind == "f" and not binary:
        array = np.nan_to_num(array)
    body, length = answer("m", "1", InferRequest("", [], 1, [("y", binary)], None), {"y": array}, {})
    assert (length is not None) == binary
    (described,) = msgspec.json.decode(body[:length])["outputs"]
    given_back = {**described, "name": "x"}
    head = msgspec.json.encode({"inputs": [given_back]})
    interface = Interface((TensorSpec("x", array.dtype, array.shape),), (), "test")
    found = RequestParser(interface, 8).parse(head + body[length or len(body) :], len(head) if binary else None)
    assert described["datatype"] == name_of(array.dtype)
    np.testing.assert_array_equal(found.inputs[0], array)


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_what_json_cannot_say_is_refused_and_goes_as_bytes(number: float) -> None:
    """`null` would be read as NaN, whatever it was."""
    outputs = {"y": np.array([1.0, number], F4), "z": np.array([2.0], F4)}

    def answered(binary: bool) -> bytes:
        return answer("m", "1", InferRequest("", [], 1, [("z", False), ("y", binary)], None), outputs, {})[0]

    with pytest.raises(ValueError, match=f"`y` must be finite .* got {number:g}; ask .* binary data"):
        answered(False)
    assert answered(True).endswith(outputs["y"].tobytes())


def columns(*highs: int, name: str = "i") -> TensorSpec:
    return TensorSpec(name, np.dtype("<i8"), (ANY, len(highs)), (0, max(highs)), highs)


def test_numbers_of_columns_with_tables_of_several_sizes() -> None:
    """Each has its range; one that nothing reads takes any number."""
    model = Interface((columns(9, -1, 49),), (), "test")

    def row(*numbers: int) -> Any:
        content = {"inputs": [{"name": "i", "shape": [1, 3], "datatype": "INT64", "data": numbers}]}
        return parsed(content, interface=model).inputs[0].tolist()

    assert row(9, -(2**62), 49) == [[9, -(2**62), 49]]
    with pytest.raises(RequestRefused, match=r"`i\[:, 0\]` must hold numbers from 0 to 9, got 10"):
        row(10, 0, 0)
    with pytest.raises(RequestRefused, match=r"`i\[:, 2\]` must hold numbers from 0 to 49, got -1"):
        row(0, 0, -1)


def test_whether_columns_take_all_of_others() -> None:
    old = columns(9, -1, 49)
    assert columns(9, -1, 49).takes_all_of(old)
    assert columns(20, -1, 49).takes_all_of(old)
    assert columns(-1, -1, 49).takes_all_of(old)
    assert not columns(8, -1, 49).takes_all_of(old)
    assert not columns(9, 9, 49).takes_all_of(old)  # what nobody read is read now
    plain = TensorSpec("i", np.dtype("<i8"), (ANY, 3), (0, 49))
    assert plain.takes_all_of(columns(9, 9, 49))
    assert not columns(9, 9, 49).takes_all_of(plain)
    assert TensorSpec("i", np.dtype("<i8"), (ANY, 3)).takes_all_of(old)


@pytest.mark.parametrize("highs", [(9,), (9, -2, 3), (9, 50, 3)])
def test_largest_numbers_by_place_are_checked(highs: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="highs"):
        TensorSpec("i", np.dtype("<i8"), (ANY, 3), (0, 49), highs)
