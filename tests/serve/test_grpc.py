"""gRPC: the same answers and refusals as over HTTP, by messages of the protocol's names and numbers."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from stoker.serve.grpc.schema import SERVICE, message_class
from tests.serve.service import Service, scaling_model
from tests.waiting import await_that

SAMPLE = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_the_schema_has_the_numbers_of_the_protocol() -> None:
    """Bytes written by hand: field 1 a string, field 5 a message, field 7 bytes."""
    tensor = b"\x0a\x01x" + b"\x12\x04FP32" + b"\x1a\x01\x02"
    request = message_class("ModelInferRequest").FromString(b"\x0a\x01m" + b"\x2a\x0c" + tensor + b"\x3a\x02ab")
    assert request.model_name == "m"
    assert (request.inputs[0].name, request.inputs[0].datatype, list(request.inputs[0].shape)) == ("x", "FP32", [2])
    assert list(request.raw_input_contents) == [b"ab"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("grpc")
    model = scaling_model(folder / "scaling.onnx", 2.0)
    running = Service(folder, [f"scaling={model}"], "--grpc-port", "0")
    yield running
    running.close()


@pytest.fixture(scope="module")
def port(service: Service) -> int:
    return port_of(service)


def port_of(service: Service) -> int:
    _, _, rest = service.log.read_text().partition("gRPC at 127.0.0.1:")
    return int(rest.split()[0])


@pytest.fixture(scope="module")
def channel(port: int) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened


def call(channel: grpc.Channel, method: str, **fields: Any) -> Any:
    request, answer = message_class(f"{method}Request"), message_class(f"{method}Response")
    made = channel.unary_unary(f"/{SERVICE}/{method}", request.SerializeToString, answer.FromString)
    return made(request(**fields), timeout=20)


def classified() -> Any:
    """An output as Triton's clients ask for its two largest classes."""
    output = message_class("InferRequestedOutputTensor")(name="y")
    output.parameters["classification"].int64_param = 2
    return output


def given(**more: Any) -> Any:
    return message_class("InferInputTensor")(name="x", datatype="FP32", shape=SAMPLE.shape, **more)


@pytest.mark.integration
def test_tritons_client(port: int) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{port}")
    assert client.is_server_ready()
    assert client.is_model_ready("scaling")
    asked = triton.InferInput("x", SAMPLE.shape, "FP32")
    asked.set_data_from_numpy(SAMPLE)
    result = client.infer("scaling", [asked], request_id="8")
    np.testing.assert_array_equal(result.as_numpy("y"), SAMPLE * 2)
    client.close()


@pytest.mark.integration
def test_health_and_metadata(channel: grpc.Channel) -> None:
    assert call(channel, "ServerLive").live
    assert call(channel, "ServerReady").ready
    assert call(channel, "ModelReady", name="scaling").ready
    assert call(channel, "ServerMetadata").name == "stoker"
    described = call(channel, "ModelMetadata", name="scaling")
    assert [(each.name, each.datatype, list(each.shape)) for each in described.inputs] == [("x", "FP32", [-1, 4])]


@pytest.mark.integration
@pytest.mark.parametrize("raw", [True, False])
def test_answers(channel: grpc.Channel, raw: bool) -> None:
    fields: dict[str, Any] = {"inputs": [given()], "raw_input_contents": [SAMPLE.tobytes()]}
    if not raw:
        contents = message_class("InferTensorContents")(fp32_contents=SAMPLE.reshape(-1).tolist())
        fields = {"inputs": [given(contents=contents)]}
    answer = call(channel, "ModelInfer", model_name="scaling", id="7", **fields)
    assert (answer.id, answer.model_version) == ("7", "1")
    (output,) = answer.outputs
    found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(tuple(output.shape))
    np.testing.assert_array_equal(found, SAMPLE * 2)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"model_name": "other"}, grpc.StatusCode.NOT_FOUND),
        ({"model_name": "scaling", "model_version": "9"}, grpc.StatusCode.NOT_FOUND),
        ({"model_name": "scaling"}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"model_name": "scaling", "inputs": [given()]}, grpc.StatusCode.INVALID_ARGUMENT),
        (
            {
                "model_name": "scaling",
                "inputs": [given()],
                "raw_input_contents": [SAMPLE.tobytes()],
                "outputs": [classified()],
            },
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
        (
            {"model_name": "scaling", "inputs": [given()], "raw_input_contents": [b"abc"]},
            grpc.StatusCode.INVALID_ARGUMENT,
        ),
    ],
)
def test_refusals(channel: grpc.Channel, fields: dict[str, Any], code: grpc.StatusCode) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        call(channel, "ModelInfer", **fields)
    assert caught.value.code() is code
    assert "must" in caught.value.details() or "is served" in caught.value.details()


@pytest.mark.integration
def test_clients_that_leave_are_counted(service: Service, port: int) -> None:
    asked = message_class("ModelInferRequest")(
        model_name="scaling", inputs=[given()], raw_input_contents=[SAMPLE.tobytes()]
    )

    def left() -> bool:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
            made = opened.unary_unary(f"/{SERVICE}/ModelInfer", type(asked).SerializeToString)
            for _ in range(20):
                made.future(asked)
            time.sleep(0.005)
        return service.status()["outcomes"].get("cancelled", 0) > 0

    await_that("some were on their way", left, 30.0)
    await_that("none is left", lambda: service.status()["versions"]["1"]["pending"] == 0)


@pytest.mark.integration
def test_a_drain_refuses_what_is_new_and_answers_what_has_arrived_over_both(tmp_path: Path) -> None:
    model = scaling_model(tmp_path / "scaling.onnx", 2.0)
    service = Service(tmp_path, [f"scaling={model}"], "--grpc-port", "0", "--engines", "1", "--hang", "5min")
    fields: dict[str, Any] = {"inputs": [given()], "raw_input_contents": [SAMPLE.tobytes()], "model_name": "scaling"}
    engine = service.processes()[1]
    os.kill(engine, signal.SIGSTOP)
    with grpc.insecure_channel(f"127.0.0.1:{port_of(service)}") as opened, ThreadPoolExecutor(2) as threads:
        http, over_grpc = threads.submit(service.infer, SAMPLE), threads.submit(call, opened, "ModelInfer", **fields)
        await_that("both wait", lambda: service.status()["versions"]["1"]["pending"] == 2)
        service.process.send_signal(signal.SIGTERM)
        await_that("the drain is told", lambda: "draining" in service.log.read_text())
        with pytest.raises(grpc.RpcError) as caught:
            call(opened, "ModelInfer", **fields)
        # The library cancels a call that reaches it between the end of its acceptance and the drain.
        assert caught.value.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
        assert service.process.poll() is None
        os.kill(engine, signal.SIGCONT)
        assert http.result()[0] == 200
        assert over_grpc.result().model_version == "1"
    assert service.process.wait(20) == 0
