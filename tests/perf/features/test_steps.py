"""Steps of small programs: kernels of the target, sizes that follow from values, what stays as it was."""

import pytest
import torch
from torch import nn

from stoker.core.errors import TracingError
from stoker.perf import characterise
from stoker.perf.features.records import StepFeatures, parse_hints


def kinds(found: StepFeatures, kind: str) -> list[str]:
    return [operation.name for operation in found.operations if operation.kind == kind]


def test_grouped_convolution_backward_is_twice_its_forward() -> None:
    model = nn.Sequential(nn.Conv2d(64, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=32, bias=False))
    found = characterise(model, torch.empty(2, 64, 8, 8))
    forward, backward = (
        sum(o.flops for o in found.operations if o.phase == phase and o.dims[3:4] == (32,) and o.kind == "conv")
        for phase in ("forward", "backward")
    )
    assert forward == 2 * 2 * 64 * 64 * 2 * 9
    assert backward == 2 * forward


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))


def test_the_layout_of_images_is_that_of_the_program() -> None:
    last, usual = torch.channels_last, torch.contiguous_format
    for given, module, expected in ((usual, usual, False), (last, usual, True), (usual, last, True)):
        inputs = torch.zeros(4, 3, 16, 16).contiguous(memory_format=given)
        assert characterise(images().to(memory_format=module), inputs).channels_last is expected
    assert not characterise(nn.Linear(8, 8), torch.zeros(4, 8)).channels_last


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch.compile's own
def test_a_compiled_module_is_told_and_recorded_as_it_was_written() -> None:
    inputs, in_place = torch.zeros(4, 3, 16, 16), images()
    in_place.compile()
    plain = characterise(images(), inputs)
    for compiled in (torch.compile(images()), in_place):
        found = characterise(compiled, inputs, name=plain.name)
        assert found.compiled
        assert found.operations == plain.operations
    assert not plain.compiled


def test_a_fused_lstm_costs_its_products() -> None:
    found = characterise(nn.LSTM(32, 48, batch_first=True), torch.empty(5, 50, 32), loss=lambda out: out[0].sum())
    products = 2 * 5 * 50 * 4 * 48 * (32 + 48)
    assert kinds(found, "rnn") == ["lstm", "lstm_backward"]
    assert found.matrix_flops("forward") == pytest.approx(products, rel=0.05)
    assert found.matrix_flops("backward") == 2 * found.matrix_flops("forward")


@pytest.mark.parametrize(
    ("dtype", "masked", "kernel"),
    [
        (torch.bfloat16, False, "flash"),
        (torch.bfloat16, True, "efficient"),
        (torch.float32, False, "efficient"),
        (torch.float64, False, ""),
    ],
)
def test_attention_takes_the_kernel_of_the_target(dtype: torch.dtype, masked: bool, kernel: str) -> None:
    class Attends(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(64, 64, dtype=dtype)

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            x = self.project(x)
            return nn.functional.scaled_dot_product_attention(x, x, x, mask)

    inputs = {"x": torch.empty(2, 4, 16, 64, dtype=dtype)}
    if masked:
        inputs["mask"] = torch.ones(16, 16, dtype=torch.bool)
    found = characterise(Attends(), inputs)
    expected = [f"attention.{kernel}", f"attention.{kernel}_backward"] if kernel else []
    assert kinds(found, "attention") == expected
    if kernel:
        assert sum(o.flops for o in found.operations if o.name == f"attention.{kernel}") == 4 * 2 * 4 * 16 * 16 * 64


def test_embedding_tables_are_told_from_dense_weights_and_charged_by_row() -> None:
    model = nn.Sequential(nn.Embedding(10_000, 16), nn.Flatten(), nn.Linear(48, 1))
    found = characterise(model, torch.randint(10_000, (8, 3)), optimizer=torch.optim.Adagrad)
    assert found.weights.embedding_count == 160_000
    assert found.weights.dense_count == 49
    assert found.weights.embedding_touched_bytes == 8 * 3 * 16 * 4
    assert found.weights.optimizer_bytes == 4 * 160_049


def test_sizes_that_follow_from_values_are_named_or_hinted() -> None:
    class Selects(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x)
            return x[x > 0].sum()

    with pytest.raises(TracingError, match=r"`mask` at test_steps\.py:\d+"):
        characterise(Selects(), torch.empty(5, 4))
    found = characterise(Selects(), torch.empty(5, 4), hints=parse_hints(["mask=0.25"]))
    assert any(operation.dims == (5,) for operation in found.operations)


def test_weights_stay_as_they_are() -> None:
    model = nn.Linear(4, 2)
    before = model.weight.detach().clone()
    characterise(model, torch.ones(3, 4), optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    assert torch.equal(model.weight, before)
    assert model.weight.grad is None


def test_conversions_of_fake_modules_work() -> None:
    found = characterise(nn.Linear(8, 8).to(torch.bfloat16), torch.empty(2, 8, dtype=torch.bfloat16))
    assert {operation.dtype for operation in found.operations if operation.kind == "matmul"} == {"bfloat16"}


def test_features_survive_json() -> None:
    found = characterise(nn.Linear(4, 2), torch.ones(3, 4))
    assert StepFeatures.from_json(found.to_json()) == found


@pytest.mark.parametrize("word", ["nonzero", "=3", "mask=x", "mask=-1", "mask=1.5"])
def test_wrong_hints_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="hint"):
        parse_hints([word])


def test_a_step_function_leaves_its_model_and_optimizer_alone() -> None:
    model = nn.Sequential(nn.Embedding(20, 4), nn.Flatten(), nn.Linear(12, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, weight_decay=0.5)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    found = characterise(step, torch.randint(20, (8, 3)))
    assert found.weights.count == 20 * 4 + 12 * 2 + 2
    assert {operation.phase for operation in found.operations} == {"forward", "backward", "optimizer"}
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state


def test_an_lstms_bytes_are_its_tensors_and_its_matrix_at_each_step() -> None:
    steps, batch, width = 50, 5, 32
    found = characterise(nn.LSTM(width, width), torch.empty(steps, batch, width), loss=lambda out: out[0].sum())
    forward = next(o for o in found.operations if o.name == "lstm")
    sequence, matrix, state = steps * batch * width, 4 * width * width, batch * width
    reads = sequence + 2 * state + 2 * matrix + 2 * 4 * width + (steps - 1) * matrix
    writes = sequence + 5 * sequence + 2 * state  # outputs; gates and cells kept; last states
    assert forward.eager_bytes == forward.fused_bytes == 4 * (reads + writes)


def test_the_activation_peak_is_what_is_alive_at_the_widest_point() -> None:
    """ReLU's backward pass: its output (kept), the gradient that comes in and the one that goes out."""
    model = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 2))
    found = characterise(model, torch.empty(8, 4))
    assert found.activation_peak_bytes == pytest.approx(3 * 8 * 1000 * 4, rel=0.01)


def test_weights_that_are_moved_are_no_input() -> None:
    model = nn.Linear(4, 2)

    def step(x: torch.Tensor) -> None:
        model.to("cuda")(x.to("cuda")).sum().backward()

    assert characterise(step, torch.empty(3, 4)).input_bytes == 3 * 4 * 4
