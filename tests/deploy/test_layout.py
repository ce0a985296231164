"""Tensors that are reshaped and permuted without moving numbers are where the layout says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.lowering.layout import BATCH, Atom, Laid, permuted, reshaped

SAMPLES = 2


def tensor(laid: Laid, numbers: np.ndarray) -> np.ndarray:
    """The tensor that a layout says numbers (batch, …) are."""
    sizes = [atom.size for atom in laid.order]
    atoms = [BATCH, *laid.order]
    wanted = [atoms.index(atom) for group in laid.axes for atom in group]
    spread = numbers.reshape(SAMPLES, *sizes).transpose(wanted)
    shape = [
        int(np.prod([SAMPLES if atom is BATCH else atom.size for atom in group], dtype=int)) for group in laid.axes
    ]
    return spread.reshape(shape)


@given(st.data())
def test_views_are_as_numpy_has_them(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4))
    numbers = np.arange(SAMPLES * int(np.prod(sizes))).reshape(SAMPLES, *sizes)
    atoms = [(Atom(size),) if size > 1 else () for size in sizes]
    laid = Laid("x", ((BATCH,), *atoms), tuple(atom for group in atoms for atom in group))
    found = numbers
    for _ in range(data.draw(st.integers(1, 5))):
        if data.draw(st.booleans()):
            order = tuple(data.draw(st.permutations(range(found.ndim))))
            laid, found = permuted(laid, order), found.transpose(order)
        else:
            flat = [atom for group in laid.axes for atom in group]
            cuts = sorted(data.draw(st.sets(st.integers(0, len(flat)), max_size=3)))
            groups = [flat[a:b] for a, b in zip([0, *cuts], [*cuts, len(flat)], strict=True)]
            shape = tuple(
                int(np.prod([atom.size for atom in group if atom is not BATCH], dtype=int))
                * (-1 if BATCH in group else 1)
                for group in groups
            )
            after = reshaped(laid, shape)
            assert after is not None
            laid = after
            found = found.reshape([abs(size) * (SAMPLES if size < 0 else 1) for size in shape])
        assert tensor(laid, numbers).tolist() == found.tolist()


def test_an_axis_is_split_between_its_atoms() -> None:
    laid = Laid("x", ((BATCH,), (Atom(24),)), ())
    laid = Laid("x", laid.axes, laid.axes[1])
    split = reshaped(laid, (-1, 2, 3, 4))
    assert split is not None
    assert [[atom.size for atom in group] for group in split.axes[1:]] == [[2], [3], [4]]


def test_batch_and_others_in_one_axis() -> None:
    atom = Atom(6)
    laid = reshaped(Laid("x", ((BATCH,), (atom,)), (atom,)), (-2, 3))
    assert laid is not None
    assert laid.axes[0][0] is BATCH
    assert reshaped(laid, (6, -1)) is None
