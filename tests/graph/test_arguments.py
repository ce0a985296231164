import struct

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.graph.arguments import (
    NotRecordable,
    copy_of,
    differing,
    fill_in,
    matcher,
    same_bits,
    same_scalar,
    span_bytes,
    take_apart,
)
from stoker.graph.dataflow import Argument, Form

FLOATS = st.floats(width=64)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), FLOATS, st.text(max_size=3), st.binary(max_size=3), st.complex_numbers()
)
TREES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple))


@given(FLOATS, FLOATS)
def test_floats_are_the_same_if_their_bits_are(one, other):
    assert same_scalar(one, other) == (struct.pack("d", one) == struct.pack("d", other))


@given(SCALARS, SCALARS)
def test_scalars_of_two_types_differ(one, other):
    if type(one) is not type(other):
        assert not same_scalar(one, other)
    assert same_scalar(one, one)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (float("nan"), float("nan"), True),
        (0.0, -0.0, False),
        (complex(0, 0.0), complex(0, -0.0), False),
        (np.float32(0.0), np.float32(-0.0), False),
        (np.float32("nan"), np.float32("nan"), True),
        (np.float64(1), 1.0, False),
        (np.int64(3), np.int64(3), True),
        (1, True, False),
        (torch.float32, torch.float32, True),
        (torch.device("cpu"), torch.device("cpu"), True),
        ("a", b"a", False),
    ],
)
def test_scalars_match_by_type_and_bits(one, other, same):
    assert same_scalar(one, other) is same


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.int64,
    torch.int8, torch.uint8, torch.bool, torch.uint16, torch.float8_e4m3fn,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_a_tensor_has_the_bits_of_its_copy_alone(dtype, shape):
    one = torch.ones(shape).to(dtype)
    assert same_bits(one, one.clone())
    if one.numel():
        other = one.clone()
        other.view(-1)[0] = 0
        assert not same_bits(one, other)
    assert not same_bits(one, torch.ones((*shape, 1)).to(dtype))
    assert not same_bits(one, torch.ones(shape).to(torch.int32))


def test_bits_not_values_are_compared():
    nan = torch.tensor([float("nan"), 1.0])
    assert same_bits(nan, nan.clone())
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))
    payload = nan.view(torch.int32).clone()
    payload[0] += 1
    assert not same_bits(nan, payload.view(torch.float32))
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    assert same_bits(numbers.conj(), numbers.conj())
    assert not same_bits(numbers.conj(), numbers)
    assert same_bits(numbers.conj().imag, numbers.conj().imag)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12.0).view(3, 4), torch.arange(12.0).view(3, 4).T, torch.arange(12.0)[::3],
        torch.ones(1).expand(5), torch.ones(2, 1).expand(2, 4), torch.tensor(3), torch.zeros(0, 3),
        torch.arange(24).view(2, 3, 4)[:, 1:, ::2], torch.arange(8.0).unfold(0, 4, 2),
    ],
)  # fmt: skip
def test_a_copy_has_the_bits_and_strides_and_memory_of_its_own(tensor):
    copy = copy_of(tensor)
    assert same_bits(copy, tensor)
    assert copy.stride() == tensor.stride()
    assert copy.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr() or not tensor.numel()
    assert span_bytes(tensor) == copy.untyped_storage().nbytes()


def test_the_span_of_an_expanded_tensor_is_that_of_its_memory():
    assert span_bytes(torch.ones(1).expand(10**9)) == 4
    assert span_bytes(torch.zeros(0)) == 0


def _refuse(_):
    raise AssertionError


@given(TREES)
def test_what_is_taken_apart_is_filled_in_again_and_matched(tree):
    argument = take_apart(tree, _refuse)
    again = fill_in(argument, {}, [])
    assert differing(argument, take_apart(again, _refuse), lambda a, b: False) is None
    assert matcher(argument, [], [])(again)
    assert not matcher(argument, [], [])([again])


def test_tensors_in_trees_and_slices():
    x, c = torch.ones(3), torch.zeros(2)
    argument = take_apart(
        [x, (slice(None, 2), ...), c], lambda t: Argument(Form.VALUE, 0) if t is x else Argument(Form.CONSTANT, 0)
    )
    again = fill_in(argument, {0: x}, [c])
    assert again[0] is x
    assert again[1] == (slice(None, 2), ...)
    matches = matcher(argument, [x], [c])
    assert matches(again)
    assert matches([x, (slice(None, 2), ...), c.clone()])
    assert not matches([x.clone(), (slice(None, 2), ...), c])
    assert not matches([x, (slice(None, 3), ...), c])
    assert not matches([x, (slice(None, 2), ...), c + 1])
    assert not matches([x, (slice(None, 2), ...), torch.zeros(2, requires_grad=True)])
    assert not matches((x, (slice(None, 2), ...), c))


@pytest.mark.parametrize("odd", [object(), {"a": 1}, np.ones(2), {1}, lambda: None])
def test_what_cannot_be_compared_is_refused(odd):
    with pytest.raises(NotRecordable, match=type(odd).__name__):
        take_apart([1, odd], _refuse)


def test_what_differs_is_said():
    one, two, other = (take_apart(part, _refuse) for part in ([1, 0.5], [1, -0.5], [1, 0.5, 2]))
    found = differing(one, two, lambda a, b: True)
    assert found is not None
    assert "0.5" in found
    assert differing(one, other, lambda a, b: True) == ""
    constant = Argument(Form.CONSTANT, 0)
    assert differing(constant, constant, lambda a, b: True) is None
    assert differing(constant, constant, lambda a, b: False)
