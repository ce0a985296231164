"""What can't become integers is named: the user's file and line, the value found, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from stoker.core.errors import CalibrationError, ModelImportError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.importing.quantising import import_module, quantise
from stoker.deploy.importing.samples import Samples, gather
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration


def samples(*sizes: int, fill: float | None = None) -> Samples:
    torch.manual_seed(0)
    data = torch.randn(64, *sizes) if fill is None else torch.full((64, *sizes), fill)
    return Samples((data,), None)


def line_of(text: str) -> str:
    """This file and the line with a text."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(at for at, line in enumerate(lines, 1) if text in line and 'line_of' not in line)}"


class Unknown(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.layer(x))
        return torch.erfinv(x)  # the unknown one


def test_an_unknown_operation_is_named_with_file_and_line() -> None:
    place = line_of("# the unknown one")
    with pytest.raises(ModelImportError, match=re.escape(f"{place}: `aten.erfinv.default`")) as found:
        import_module(Unknown(), samples(4))
    assert found.value.fields["where"] == place


class Padded(nn.Module):
    """A transformer's layer that leaves out rows of zeros, or adds a mask of its own making."""

    def __init__(self, *, added: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.added = added

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.added:
            rows = x[:, None]
            mask = rows @ rows.transpose(2, 3)
            return functional.scaled_dot_product_attention(rows, rows, rows, attn_mask=mask)  # added
        return self.layer(x, src_key_padding_mask=(x == 0).all(2))  # compared


@pytest.mark.parametrize(
    ("added", "said", "marked"),
    [
        (True, "`attn_mask` must be constant, or made of whole inputs alone; make masks", "# added"),
        (
            False,
            "truth values must be constant, and depend on real numbers; give the mask as an input of truth values",
            "# compared",
        ),
    ],
)
def test_masks_of_real_inputs_are_refused_with_what_to_do(added: bool, said: str, marked: str) -> None:
    with pytest.raises(ModelImportError, match=said) as found:
        import_module(Padded(added=added), samples(6, 8))
    assert found.value.fields["where"] == line_of(marked)


@pytest.mark.parametrize(
    "rule",
    [
        lambda x: x.abs().sum(-1) == 0,
        lambda x: (x == 0).all(-1),
        lambda x: x.isnan().any(-1),
        lambda x: x[..., 0] > 0.5,
        lambda x: x[..., 0].bool(),
    ],
)
def test_each_way_to_make_a_mask_of_real_numbers_is_told_to_give_it_as_an_input(rule: Callable[..., Any]) -> None:
    module = Of(lambda s, x: s.l(x).softmax(1).masked_fill(rule(x)[..., None], 0.0), l=nn.Linear(4, 4))
    with pytest.raises(ModelImportError, match=r"give (the mask|what comes of it) as an input") as found:
        import_module(module, samples(6, 4))
    assert found.value.fields["where"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Of(lambda s, x: s.l(x).mean(0, keepdim=True) + x, l=nn.Linear(4, 4)), "must not mix samples"),
        (Of(lambda s, x: torch.softmax(s.l(x), 0), l=nn.Linear(4, 4)), "`dim` must not be the batch"),
        (Of(lambda s, x: torch.log_softmax(s.l(x), -2), l=nn.Linear(4, 4)), "`dim` must not be the batch"),
        (
            Of(lambda s, x: x / s.l(x), l=nn.Linear(4, 4)),
            r"divisor must be constant.*; multiply by its `reciprocal\(\)`",
        ),
        (
            Of(lambda s, x: s.l(x) + torch.randn(4), l=nn.Linear(4, 4)),
            "random numbers must not be drawn.*behind `if self",
        ),
        (
            Of(lambda s, x: s.l(x) + torch.zeros(4).uniform_(), l=nn.Linear(4, 4)),
            "random numbers must not be drawn.*behind `if self",
        ),
        (Of(lambda s, x: s.l(x) * torch.rand_like(x), l=nn.Linear(4, 4)), "random numbers must not be drawn"),
        (Of(lambda s, x: torch.dropout(s.l(x), 0.5, True), l=nn.Linear(4, 4)), "give it `training=self.training`"),
        (Of(lambda s, x: s.l(x).max(1).indices, l=nn.Linear(4, 4)), "argmax.*return the scores, and choose among them"),
        (Of(lambda s, x: s.l(x)[0], l=nn.LSTMCell(4, 4)), "write its steps with `nn.Linear`"),
        (
            Of(lambda s, x: functional.interpolate(s.l(x)[:, None], 9), l=nn.Linear(4, 4)),
            '`mode="nearest"` and a whole',
        ),
        (
            Of(lambda s, x: s.l(x).cumsum(1), l=nn.Linear(4, 4)),
            "multiply by a constant with ones up to its diagonal instead",
        ),
    ],
)
def test_a_form_that_integers_do_not_have_is_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(ModelImportError, match=said):
        import_module(module, samples(4))


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Of(lambda s, x: (lambda y: y @ y.t())(s.l(x)), l=nn.Linear(4, 4)), "samples must not be combined"),
        (Of(lambda s, x: (lambda y: y.t() @ y)(s.l(x)), l=nn.Linear(4, 4)), "product must not mix samples"),
        (Of(lambda s, x: s.l(x)[:, None] - x[None], l=nn.Linear(4, 4)), "samples must not be combined"),
    ],
)
def test_samples_that_meet_are_refused(module: nn.Module, said: str) -> None:
    with pytest.raises(ModelImportError, match=said):
        import_module(module, samples(4))


def test_an_attention_that_drops_shares_is_refused() -> None:
    attention = Of(lambda s, x: functional.scaled_dot_product_attention(s.q(x), x, x, dropout_p=0.5), q=nn.Linear(4, 4))
    with pytest.raises(ModelImportError, match=r"`dropout_p` must be 0.*got 0.5; give it"):
        import_module(attention, samples(3, 4))


def zeroed(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    x[:, 0] = 0
    return x * 2


def rectified_part(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    torch.relu_(x[:, :2])
    return x * 2


def moved_first(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x.chunk(2, -1)[0].add_(3)
    return self.l(x)


def moved_last(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    x.split(1, -1)[-1].add_(3)
    return x


def moved_one(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    x.unbind(1)[1].add_(3)
    return x


def moved_within(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x, _ = first = self.l(x).chunk(2, -1)
    x.view(-1, 2, 1).add_(3)
    return first[0] * first[1]


def moved_twice_held(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x, y = self.l(x).unsqueeze(1).expand(-1, 2, -1).unbind(1)
    x.add_(3)
    return x * y


def moved_in_its_type(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    x.to(torch.float32).add_(3)
    return x


@pytest.mark.parametrize(
    "function",
    [zeroed, rectified_part, moved_first, moved_last, moved_one, moved_within, moved_twice_held],
)
def test_what_is_written_to_a_part_of_a_value_is_refused(function: Callable[..., torch.Tensor]) -> None:
    with pytest.raises(ModelImportError, match=r"part or a view|not among the operations"):
        import_module(Of(function, l=nn.Linear(4, 4)).requires_grad_(False), samples(4))


@pytest.mark.parametrize(
    "drawn",
    [
        lambda x: torch.poisson(torch.ones(4) * 4),
        lambda x: torch.ones(4).geometric_(0.3),
        lambda x: torch.ones(4).log_normal_(),
        lambda x: torch.ones(4).cauchy_(),
        lambda x: torch.ones(4).random_(5),
        lambda x: torch.binomial(torch.ones(4) * 4, torch.ones(4) / 2),
        lambda x: torch.ones(x.shape[0], 4).exponential_(),
        lambda x: functional.dropout(torch.ones(4), 0.5, True),
        lambda x: functional.rrelu(-torch.ones(4), training=True),
        lambda x: functional.scaled_dot_product_attention(*[torch.ones(3, 1, 4)] * 3, dropout_p=0.5).sum(0),
    ],
)
def test_constants_that_are_drawn_are_refused(drawn: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with pytest.raises(ModelImportError, match="in evaluation mode"):
        import_module(Of(lambda s, x: s.l(x) + drawn(x), l=nn.Linear(4, 4)), samples(4))


def test_what_draws_in_training_alone_is_folded() -> None:
    def kept(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        ones = functional.dropout(torch.ones(4), 0.5, self.training)
        return self.l(x) + functional.rrelu(-ones, training=self.training) + functional.alpha_dropout(ones)

    import_module(Of(kept, l=nn.Linear(4, 4)), samples(4))


def test_what_is_written_in_place_counts_though_its_result_is_not_read() -> None:
    def rectified(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = self.l(x)
        torch.relu_(x)
        return x

    torch.manual_seed(0)
    found = quantise(Of(rectified, l=nn.Linear(4, 4)), samples(4))
    given = {found.graph.inputs[0].name: samples(4).inputs[0].numpy()}
    assert NumpyEngine(found.graph)(given)["output"].min() == 0.0


def test_parts_are_taken_by_constant_numbers() -> None:
    rows, columns = [1, 2, 2, 3], [0, 0, 1, 2]

    def interactions(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x = self.l(x).unflatten(1, (4, 3))
        x = x[:, rows, columns][:, torch.tensor([3, 0, -3])]
        return torch.index_select(x, -1, torch.tensor([2, 1, 1])).flip(-1)

    torch.manual_seed(0)
    module = Of(interactions, l=nn.Linear(4, 12))
    found = quantise(module, samples(4))
    given = samples(4).inputs[0]
    whole = NumpyEngine(found.graph)({found.graph.inputs[0].name: given.numpy()})["output"]
    assert np.median(abs(whole - module(given).detach().numpy())) < 0.02


def test_rows_of_a_constant_that_inputs_choose_are_refused_with_what_to_do() -> None:
    ids = Samples((torch.arange(64) % 5,), None)
    with pytest.raises(ModelImportError, match=r"rows of a table by `nn.functional.embedding`"):
        import_module(Of(lambda s, x: s.l(s.l.weight[x]), l=nn.Linear(4, 5)), ids)


def test_a_view_of_what_is_written_in_place_is_refused_where_it_is_read_later() -> None:
    def doubled(self: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.l(x)
        part = x.view(-1, 2, 2)
        x.mul_(2)
        return x, part

    with pytest.raises(ModelImportError, match=r"must not write to `linear`: `view`, a part or a view of the same"):
        import_module(Of(doubled, l=nn.Linear(4, 4)), samples(4))


def moved_as_dropped(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    self.d(x).add_(3.0)
    return x


def moved_twice(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    functional.relu(x, inplace=True).add_(3.0)
    return x


def view_alone(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return functional.relu(self.d(self.l(x).view(-1, 2, 2)), inplace=True)


def gated(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """What is written to a part leaves the others as they are."""
    x, gate = self.l(x).chunk(2, -1)
    return x * gate.sigmoid_()


def moved_copy(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    x = self.l(x)
    return x.to(torch.float64).add_(1.0).float() * x


def moved_constant(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    shift = torch.zeros(4)
    shift.chunk(2)[0].fill_(2.0)
    return self.l(x) + shift


@pytest.mark.parametrize(
    "function", [moved_as_dropped, moved_twice, view_alone, gated, moved_in_its_type, moved_copy, moved_constant]
)
def test_what_is_written_in_place_is_written_to_all_that_has_that_memory(
    function: Callable[..., torch.Tensor],
) -> None:
    torch.manual_seed(0)
    module = Of(function, l=nn.Linear(4, 4), d=nn.Dropout()).requires_grad_(False).eval()
    found = quantise(module, samples(4))
    given = samples(4).inputs[0]
    whole = NumpyEngine(found.graph)({found.graph.inputs[0].name: given.numpy()})["output"]
    assert np.median(abs(whole - module(given).detach().numpy())) < 0.02


def test_samples_that_a_model_writes_to_stay_as_they_are() -> None:
    def doubled(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return self.l(x)

    own = samples(4)
    before = own.inputs[0].clone()
    model = import_module(Of(doubled, l=nn.Linear(4, 4)), own)
    assert (model.outputs(own)[0] == model.outputs(own)[0]).all()
    assert torch.equal(own.inputs[0], before)


def test_infinite_weights_are_named() -> None:
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight[1, 2] = float("inf")
    with pytest.raises(ModelImportError, match="`weight` must be finite, got inf"):
        import_module(layer, samples(4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_samples_that_are_not_finite_are_named(bad: float) -> None:
    given = samples(4)
    given.inputs[0][2, 1] = bad
    with pytest.raises(CalibrationError, match="calibration samples must give finite numbers"):
        import_module(nn.Linear(4, 4), given)


def test_no_samples_are_refused() -> None:
    with pytest.raises(CalibrationError, match="at least 8 samples, got 0"):
        gather([], 100)


def test_labels_are_whole_numbers_after_the_inputs() -> None:
    found = gather([(torch.randn(6, 4), torch.arange(6)), (torch.randn(6, 4), torch.arange(6))], 10)
    assert len(found) == 10
    assert found.labels is not None
    assert found.labels.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert [len(found.part(role)) for role in ("calibrate", "search", "accept")] == [5, 3, 2]
    assert gather([torch.randn(9, 4)], 10).labels is None


class _TwoIndices(nn.Module):
    def forward(self, user: torch.Tensor, item: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return (user + item) * scale


@pytest.mark.parametrize(
    ("batch", "labels"),
    [
        ((torch.arange(8), 10 + torch.arange(8)), None),
        ({"item": 10 + torch.arange(8), "user": torch.arange(8)}, None),
        ((torch.arange(8), 10 + torch.arange(8), 20 + torch.arange(8)), 20),
        ({"y": 20 + torch.arange(8), "item": 10 + torch.arange(8), "user": torch.arange(8)}, 20),
    ],
)
def test_what_the_model_needs_is_no_label_and_is_known_by_its_name(batch: Any, labels: int | None) -> None:
    found = gather([batch], 8, _TwoIndices())
    assert [int(each[0]) for each in found.inputs] == [0, 10]
    assert (None if found.labels is None else found.labels[0]) == labels


def test_a_batch_of_something_else_is_refused() -> None:
    tensors = torch.randn(9, 4), torch.randn(9, 4)
    with pytest.raises(CalibrationError, match=r"must hold tensors, got tuple .*; return one for each argument of"):
        gather([(tensors, None)], 10)


@pytest.mark.parametrize("fill", [0.0, 3.5, -2.0])
def test_constant_samples_give_a_model_that_works(fill: float) -> None:
    layer = nn.Linear(4, 3)
    given = samples(4, fill=fill)
    found = quantise(layer, given)
    with torch.no_grad():
        real = layer(given.inputs[0][:5]).numpy()
    whole = NumpyEngine(found.graph)({"input": given.inputs[0][:5].numpy()})["output"]
    assert abs(whole - real).max() < 0.05


def test_a_model_of_zeros_gives_zeros() -> None:
    layer = nn.Linear(4, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    found = quantise(layer, samples(4))
    assert not NumpyEngine(found.graph)({"input": samples(4).inputs[0].numpy()})["output"].any()


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout())
    before = {name: each.clone() for name, each in module.state_dict().items()}
    import_module(module.train(), samples(4))
    assert module.training
    assert module[1].training
    assert all(torch.equal(each, before[name]) for name, each in module.state_dict().items())


class Doubles(nn.Module):
    """A model that writes to its buffer, of which another one is a part."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("whole", torch.ones(8))
        self.register_buffer("part", self.whole[:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.whole.mul_(2)
        return self.layer(x) + self.whole + self.part.sum()


def test_buffers_that_a_model_writes_to_stay_as_they_are() -> None:
    torch.manual_seed(0)
    module = Doubles().requires_grad_(False).eval()
    found = quantise(module, samples(8))
    assert torch.equal(module.whole, torch.ones(8))
    given = samples(8).inputs[0]
    whole = NumpyEngine(found.graph)({found.graph.inputs[0].name: given.numpy()})["output"]
    assert np.median(abs(whole - module(given).numpy())) < 0.1


class Chooses(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:  # by its numbers
            x = x * 2
        return x


def test_what_torch_says_of_a_choice_by_numbers_is_cut_to_the_users_line(capfd: pytest.CaptureFixture[str]) -> None:
    place = line_of("# by its numbers")
    with pytest.raises(ModelImportError, match=r"must do the same for all samples.*`torch.where`") as found:
        import_module(Chooses(), samples(4))
    assert found.value.fields["where"] == place
    assert "\n" not in found.value.args[0]
    assert "def forward" not in capfd.readouterr().err


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.float() / 255)  # divides


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Conv2d(3, 4, 1), r"the loader gives uint8: .*`x.float\(\) / 255`"),
        (nn.Linear(4, 4), r"the loader gives uint8: .*`x.float\(\) / 255`"),
        (Scaled(), r"`div` must hold whole numbers.* make real numbers of images in the loader, .*`x.float\(\) / 255`"),
    ],
)
def test_images_of_bytes_are_refused_with_the_way_out(module: nn.Module, said: str) -> None:
    given = samples(*((3, 4, 4) if isinstance(module, nn.Conv2d) else (4,)))
    whole = Samples(tuple(each.to(torch.uint8) for each in given.inputs), None)
    with pytest.raises((ModelImportError, CalibrationError), match=said):
        import_module(module, whole)


class Logarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(torch.log(x))  # of less than nothing


def test_numbers_that_are_not_finite_are_named_at_the_users_line_alone() -> None:
    with pytest.raises(CalibrationError) as found:
        import_module(Logarithm(), samples(4))
    said = found.value.args[0]
    assert said.startswith(f"{line_of('# of less than nothing')}: calibration samples must give finite numbers")
    assert "\n" not in said
