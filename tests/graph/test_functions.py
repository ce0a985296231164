import pytest
import torch
from torch.overrides import get_testing_overrides

from stoker.graph.functions import Effect, effect, find, is_plain, may_draw, path_of, simple_name, writes_by_keyword

FUNCTIONS = list(get_testing_overrides())


def test_every_function_of_torch_is_found_by_its_path_or_has_none():
    lost = []
    for function in FUNCTIONS:
        path = path_of(function)
        if path:
            assert find(path) == function
        else:
            lost.append(simple_name(function))
    # What only lives under a name of torch's own making can't be found by a worker, so it never moves.
    assert len(lost) < len(FUNCTIONS) // 20, lost


@pytest.mark.parametrize(
    "function",
    [
        torch.Tensor.add, torch.Tensor.__getitem__, torch.Tensor.T.__get__, torch.Tensor.real.__get__, torch.sin,
        torch.nn.functional.one_hot, torch.nn.functional.gelu, torch.special.expit, torch.linalg.norm, torch.fft.fft,
        torch.ops.aten.sin, torch.ops.aten.add.Tensor, torch.split, torch.stack, torch.einsum, torch.bucketize,
        torch.nn.functional.interpolate, torch.Tensor.unbind, torch.Tensor.__rsub__, torch.arange,
    ],
)  # fmt: skip
def test_the_common_functions_are_found(function):
    assert find(path_of(function)) == function


def test_what_is_not_torchs_has_no_path():
    def local(x):
        return x

    assert path_of(local) == ""
    assert path_of(len) == ""
    with pytest.raises((ImportError, AttributeError)):
        find("torch.no_such_function")


def test_what_writes_by_its_name_is_known_to_write():
    for function in FUNCTIONS:
        name = simple_name(function)
        if name.endswith("_") and not name.endswith("__"):
            assert effect(function) in (Effect.WRITES, Effect.ESCAPES), name


@pytest.mark.parametrize("name", sorted(name for name in dir(torch.Tensor) if name.startswith("__i")))
def test_augmented_assignments_write_and_nothing_else_of_that_look(name):
    augmented = callable(getattr(torch.Tensor, f"__{name[3:]}", None)) and name not in ("__init__", "__int__")
    wanted = Effect.WRITES if augmented else Effect.NONE
    assert effect(getattr(torch.Tensor, name)) is wanted


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (torch.Tensor.__setitem__, Effect.WRITES),
        (torch.Tensor.data.__set__, Effect.WRITES),
        (torch.Tensor.requires_grad_, Effect.WRITES),
        (torch.Tensor.data.__get__, Effect.ESCAPES),
        (torch.Tensor.numpy, Effect.ESCAPES),
        (torch.Tensor.__dlpack__, Effect.ESCAPES),
        (torch.Tensor.data_ptr, Effect.ESCAPES),
        (torch.Tensor.__cuda_array_interface__.__get__, Effect.ESCAPES),
        (torch.Tensor.shape.__get__, Effect.METADATA),
        (torch.Tensor.size, Effect.METADATA),
        (torch.Tensor.type, Effect.NONE),
        (torch.Tensor.__iter__, Effect.NONE),
        (torch.Tensor.__invert__, Effect.NONE),
        (torch.empty_like, Effect.UNINITIALISED),
        (torch.Tensor.new_empty, Effect.UNINITIALISED),
        (torch.Tensor.new, Effect.UNINITIALISED),
        (torch.Tensor.new_zeros, Effect.NONE),
        (torch.sin, Effect.NONE),
    ],
)
def test_the_effect_of_a_function(function, wanted):
    assert effect(function) is wanted


def test_keywords_that_write():
    assert writes_by_keyword({"out": torch.ones(1)})
    assert writes_by_keyword({"inplace": True})
    assert not writes_by_keyword({"out": None, "inplace": False, "dim": 1})


def test_draws_that_depend_on_elements():
    assert may_draw(torch.poisson)
    assert not may_draw(torch.sin)


def test_plain_tensors():
    assert is_plain(torch.ones(2))
    complex_ones = torch.ones(2, dtype=torch.complex64)
    with torch.inference_mode():
        inferred = torch.ones(2)
    for odd in (
        torch.nn.Parameter(torch.ones(2)), torch.ones(2).to_sparse(), torch.ones(2, device="meta"), inferred,
        complex_ones.conj(), complex_ones.conj().imag,
    ):  # fmt: skip
        assert not is_plain(odd)
