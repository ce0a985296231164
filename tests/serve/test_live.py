"""A service in its own process: what clients get, whatever they send and whatever becomes of its processes."""

from __future__ import annotations

import http.client
import itertools
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import tritonclient.http as triton
from numpy.typing import NDArray
from safetensors.torch import save_file

from stoker.cli.main import main
from stoker.records.events import RunEnded
from stoker.records.runlog import read_run
from stoker.wire.secrets import create_secret
from tests.serve.service import ENVIRON, Service, is_there, json_request, scaling_model
from tests.waiting import await_that

pytestmark = pytest.mark.integration

SAMPLE = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("served")
    model = scaling_model(folder / "scaling.onnx", 2.0)
    running = Service(folder, [f"scaling={model}"], "--max-body", "1MiB", "--body-time", "1s", "--hang", "500ms")
    yield running
    running.close()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Service]:
    """A service of one test, which changes its processes; its engines mostly have their next batch already."""
    model = scaling_model(tmp_path / "scaling.onnx", 2.0)
    running = Service(tmp_path, [f"scaling={model}"], "--hang", "500ms", "--max-batch", "2")
    yield running
    running.close()


class Clients:
    """Threads that ask all the time, and check each answer.

    Args:
        service: that is asked.
        factors: that answers may show.
    """

    def __init__(self, service: Service, factors: set[float], count: int = 4) -> None:
        self.answers = 0
        self.wrong: list[Any] = []
        self.seen: set[float] = set()
        self._service = service
        self._factors = factors
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(count)]

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        source = np.random.default_rng(number)
        connection = http.client.HTTPConnection("127.0.0.1", self._service.port, timeout=30)
        while not self._over.is_set():
            values = source.integers(20, 1000, (int(source.integers(1, 4)), 4)).astype(np.float32)
            try:
                connection.request("POST", "/v2/models/scaling/infer", json_request(values))
                answer = connection.getresponse()
                text = answer.read()
            except OSError as error:
                self.wrong.append(error)
                return
            if answer.status != 200:
                self.wrong.append((answer.status, text))
                continue
            (output,) = msgspec.json.decode(text)["outputs"]
            factors = np.unique(np.array(output["data"]) / values.reshape(-1))
            if len(factors) != 1 or factors[0] not in self._factors:
                self.wrong.append(factors)
            self.seen.update(factors.tolist())
            self.answers += 1
        connection.close()


def some_answers(clients: Clients, more: int = 20) -> None:
    before = clients.answers
    await_that("clients get answers", lambda: clients.wrong or clients.answers > before + more, 30.0)


class TestProtocol:
    def test_every_error_is_json_as_clients_of_the_protocol_expect(self, service: Service) -> None:
        for method, path, status in (
            ("GET", "/v2/models/scaling/config", 404), ("GET", "/v2/models/stats", 404), ("GET", "/nothing", 404),
            ("GET", "/v2/", 404),
            ("POST", "/v2/repository/index", 404), ("DELETE", "/v2", 405), ("GET", "/v2/models/scaling/infer", 405),
        ):  # fmt: skip
            told = service.ask(method, path)
            assert told[0] == status
            assert "must be" in msgspec.json.decode(told[2])["error"]
            assert ("allow" in told[1]) == (status == 405)
        with socket.create_connection(("127.0.0.1", service.port), timeout=5) as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00\x01\r\n\r\n")  # as TLS begins
            status, body = Answers(sock).next()
        assert (status, "must be one of HTTP/1.1" in msgspec.json.decode(body)["error"]) == (400, True)
        client = triton.InferenceServerClient(f"127.0.0.1:{service.port}")
        with pytest.raises(triton.InferenceServerException, match="must be one that this service has"):
            client.get_model_config("scaling")
        client.close()

    def test_tritons_client_in_json_and_binary(self, service: Service) -> None:
        client = triton.InferenceServerClient(f"127.0.0.1:{service.port}")
        assert client.is_server_live()
        assert client.is_server_ready()
        assert client.is_model_ready("scaling")
        assert client.is_model_ready("scaling", "1")
        assert client.get_server_metadata()["name"] == "stoker"
        described = client.get_model_metadata("scaling")
        assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
        for binary in (False, True):
            given = triton.InferInput("x", SAMPLE.shape, "FP32")
            given.set_data_from_numpy(SAMPLE, binary_data=binary)
            asked = triton.InferRequestedOutput("y", binary_data=binary)
            result = client.infer("scaling", [given], outputs=[asked], request_id="7")
            np.testing.assert_array_equal(result.as_numpy("y"), SAMPLE * 2)
            assert result.get_response()["id"] == "7"
            assert result.get_response()["model_version"] == "1"
        client.close()

    @pytest.mark.parametrize(
        ("method", "path", "body", "headers", "status"),
        [
            ("POST", "/v2/models/scaling/infer", b"{", {}, 400),
            ("POST", "/v2/models/scaling/infer", b"", {}, 400),
            ("POST", "/v2/models/scaling/infer", json_request(SAMPLE[:, :3]), {}, 400),
            ("POST", "/v2/models/scaling/infer", json_request(SAMPLE), {"Inference-Header-Content-Length": "x"}, 400),
            ("POST", "/v2/models/scaling/infer", json_request(SAMPLE), {"Content-Encoding": "gzip"}, 415),
            ("POST", "/v2/models/other/infer", json_request(SAMPLE), {}, 404),
            ("POST", "/v2/models/scaling/versions/9/infer", json_request(SAMPLE), {}, 404),
            ("POST", "/v2/models/scaling/versions/1/infer", json_request(SAMPLE), {}, 200),
            ("POST", "/v2/models/scaling/infer", bytes(2 << 20), {}, 413),
            ("GET", "/v2/models/scaling/infer", None, {}, 405),
            ("GET", "/v2/models/other", None, {}, 404),
            ("GET", "/v2/models/scaling/versions/9/ready", None, {}, 404),
            ("GET", "/else", None, {}, 404),
            ("POST", "/stoker/models/scaling/swap", b'{"source": "nothing.onnx"}', {}, 403),
            ("POST", "/stoker/models/scaling/swap", b"{}", {"Stoker-Control": "no"}, 403),
        ],
    )
    def test_each_request_has_its_status(
        self, service: Service, method: str, path: str, body: bytes | None, headers: dict[str, str], status: int
    ) -> None:
        found, _, text = service.ask(method, path, body, headers)
        assert found == status, text
        if found != 404 or path.startswith("/v2"):
            assert ("error" in msgspec.json.decode(text)) == (status != 200)

    def test_figures_for_prometheus(self, service: Service) -> None:
        service.infer(SAMPLE)
        text = service.ask("GET", "/metrics")[2].decode()
        assert 'stoker_serve_requests_total{model="scaling",outcome="answered"}' in text
        assert 'stoker_serve_request_seconds_bucket{le="+Inf",model="scaling"}' in text


class TestClients:
    def test_a_slow_body_ends_after_its_time(self, service: Service) -> None:
        body = json_request(SAMPLE)
        with socket.create_connection(("127.0.0.1", service.port)) as sock:
            head = f"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
            sock.sendall(head.encode() + body[:10])
            sock.settimeout(20)
            assert sock.recv(4096).startswith(b"HTTP/1.1 408")
        assert service.infer(SAMPLE)[0] == 200

    def test_slow_headers_end_after_their_time(self, service: Service) -> None:
        """Else one client with many connections could keep all others out."""
        with socket.create_connection(("127.0.0.1", service.port)) as sock:
            sock.settimeout(20)
            sock.sendall(json_post(SAMPLE))
            assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(b"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\n")
            assert sock.recv(4096) == b""

    def test_clients_that_leave_behind_requests_in_a_row_cost_no_line(self, service: Service) -> None:
        for _ in range(20):
            sock = socket.create_connection(("127.0.0.1", service.port))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # its end is a reset
            sock.sendall(json_post(SAMPLE) * 8)
            sock.close()
        await_that("nothing waits", lambda: service.status()["versions"]["1"]["pending"] == 0)
        assert service.infer(SAMPLE)[0] == 200
        assert "Traceback" not in service.log.read_text()

    def test_a_body_without_a_length_is_bounded_too(self, service: Service) -> None:
        with socket.create_connection(("127.0.0.1", service.port)) as sock:
            sock.sendall(b"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
            sock.settimeout(20)
            chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
            try:
                for _ in range(40):
                    sock.sendall(chunk)
            except OSError:
                pass  # it answers, and closes, before all is sent
            assert sock.recv(4096).startswith(b"HTTP/1.1 413")

    def test_clients_that_leave_cost_nothing(self, service: Service) -> None:
        body = json_request(SAMPLE)
        head = f"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for sent in (head, head + body[:20], head + body):
            for _ in range(10):
                with socket.create_connection(("127.0.0.1", service.port)) as sock:
                    sock.sendall(sent)
        await_that("nothing waits", lambda: service.status()["versions"]["1"]["pending"] == 0)
        assert service.infer(SAMPLE)[0] == 200

    def test_any_bytes_on_a_connection(self, service: Service) -> None:
        source = random.Random(0)
        body = json_request(SAMPLE)
        head = f"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for _ in range(100):
            damaged = bytearray(head + body)
            for _ in range(source.randrange(1, 6)):
                damaged[source.randrange(len(damaged))] = source.randrange(256)
            with socket.create_connection(("127.0.0.1", service.port)) as sock:
                sock.sendall(damaged[: source.randrange(len(damaged) + 1)])
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(5)
                try:
                    while sock.recv(4096):
                        pass
                except OSError:
                    pass  # closed at once, or kept for the rest of a body: both are answers to such bytes
        status, answer = service.infer(SAMPLE)
        assert status == 200
        assert answer["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()


def json_post(values: NDArray[Any]) -> bytes:
    """A request for an inference, whole."""
    body = json_request(values)
    return b"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Answers:
    """Reads the answers on a connection, one after another."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")

    def next(self) -> tuple[int, bytes]:
        """Status and body; without those that only say that a body may come."""
        status = int(self._file.readline().split()[1])
        length = 0
        while (line := self._file.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        return self.next() if status == 100 else (status, self._file.read(length))


def forms_of_requests(number: int) -> list[bytes]:
    """Ways to ask for the same."""
    values = np.full((1, 4), number, np.float32)
    body, start = json_request(values), b"POST /v2/models/scaling/infer HTTP/1.1\r\nHost: h\r\n"
    plain = start + b"Content-Length: %d\r\n" % len(body)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:30], body[30:])) + b"0\r\n\r\n"
    upgrading = (
        b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
    )
    trailing = chunks[:-2] + b"Inference-Header-Content-Length: 5\r\n\r\n"
    versioned = plain.replace(b"/infer", b"/versions/1/infer")
    return [
        plain + b"\r\n" + body,
        start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks,
        plain + b"Expect: 100-continue\r\n\r\n" + body,
        plain + upgrading + body,
        start + b"Transfer-Encoding: chunked\r\n" + upgrading + chunks,
        start + b"Transfer-Encoding: chunked\r\n\r\n" + trailing,
        plain + b"Content-Encoding: Identity\r\n\r\n" + body,
        versioned + b"\r\n" + body,
    ]


class TestConnections:
    def test_requests_in_a_row_and_in_any_pieces_are_answered_in_their_order(self, service: Service) -> None:
        source = random.Random(0)
        for _ in range(25):
            numbers = [source.randrange(20, 1000) for _ in range(source.randrange(2, 6))]
            sent = b"".join(source.choice(forms_of_requests(number)) for number in numbers)
            sent += b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
            cuts = sorted(source.randrange(len(sent)) for _ in range(source.randrange(4)))
            with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sock:
                for begin, end in itertools.pairwise([0, *cuts, len(sent)]):
                    sock.sendall(sent[begin:end])
                    time.sleep(source.choice([0.0, 0.002]))
                answers = Answers(sock)
                for number in numbers:
                    status, body = answers.next()
                    assert status == 200, body
                    assert msgspec.json.decode(body)["outputs"][0]["data"] == [2 * number] * 4
                assert answers.next()[0] == 200

    def test_many_requests_at_once_may_ask_for_another_protocol(self, service: Service) -> None:
        asked = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sock:
            sock.sendall(2000 * asked)
            answers = Answers(sock)
            assert {answers.next()[0] for _ in range(2000)} == {200}

    def test_what_does_not_fit_a_slot_is_refused_and_the_next_one_is_answered(self, tmp_path: Path) -> None:
        model = scaling_model(tmp_path / "scaling.onnx", 2.0)
        service = Service(tmp_path, [f"scaling={model}"], "--engines", "1", "--slot-bytes", "4KiB")
        status, answer = service.infer(np.ones((300, 4), np.float32))
        assert (status, "--slot-bytes" in answer["error"]) == (413, True)
        status, answer = service.infer(np.ones((200, 4), np.float32))  # the outputs do not fit behind the inputs
        assert (status, "--slot-bytes" in answer["error"]) == (500, True)
        assert service.infer(SAMPLE)[0] == 200
        service.close()


def children(pid: int) -> list[int]:
    """Processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class TestProcesses:
    def test_killed_engines_cost_no_answer(self, own: Service) -> None:
        killed: set[int] = set()
        with Clients(own, {2.0}) as clients:
            for number in range(6):
                some_answers(clients)
                engines = await_that("an engine is there", lambda: own.processes()[1:])
                killed.add(engines[number % len(engines)])
                os.kill(engines[number % len(engines)], signal.SIGKILL)
                await_that("its end is seen", lambda: own.status()["versions"]["1"]["lost_engines"] >= len(killed))
        assert clients.wrong == []
        await_that("both are back", lambda: own.status()["versions"]["1"]["ready_engines"] == 2)

    def test_a_service_that_was_stopped_goes_on(self, tmp_path: Path) -> None:
        """Its engine has ended both of its batches meanwhile, and clients have sent more than the next ones hold."""
        model = scaling_model(tmp_path / "scaling.onnx", 2.0)
        service = Service(tmp_path, [f"scaling={model}"], "--max-batch", "2", "--engines", "1")
        with Clients(service, {2.0}, 12) as clients:
            for _ in range(10):
                some_answers(clients)
                service.process.send_signal(signal.SIGSTOP)
                time.sleep(0.03)
                service.process.send_signal(signal.SIGCONT)
            some_answers(clients)
        assert clients.wrong == []
        service.close()

    def test_a_stopped_engine_costs_no_answer(self, own: Service) -> None:
        with Clients(own, {2.0}) as clients:
            some_answers(clients)
            stopped = own.processes()[1]
            os.kill(stopped, signal.SIGSTOP)
            await_that("it is replaced", lambda: not is_there(stopped), 30.0)
            some_answers(clients)
        assert clients.wrong == []

    @pytest.mark.slow("a process with a model has ten seconds to fork")
    def test_a_stopped_model_and_its_engines_cost_no_answer(self, tmp_path: Path) -> None:
        """Also where engines have less time to be warm than that process has to fork them."""
        model = scaling_model(tmp_path / "scaling.onnx", 2.0)
        service = Service(tmp_path, [f"scaling={model}"], "--hang", "500ms", "--start-time", "5s")
        with Clients(service, {2.0}) as clients:
            some_answers(clients)
            for pid in service.processes():
                os.kill(pid, signal.SIGSTOP)
            some_answers(clients)
        assert clients.wrong == []
        service.close()

    def test_the_end_of_the_template_costs_no_answer(self, own: Service, tmp_path: Path) -> None:
        (template,) = children(own.process.pid)
        with Clients(own, {2.0, 3.0}) as clients:
            some_answers(clients)
            os.kill(template, signal.SIGKILL)
            await_that("another one is there", lambda: children(own.process.pid) not in ([], [template]))
            some_answers(clients)
            assert own.swap(source=str(scaling_model(tmp_path / "three.onnx", 3.0)), hold_s=0.1)[1]["changed"]
        assert clients.wrong == []

    def test_the_end_of_the_process_with_the_model_costs_no_answer(self, own: Service) -> None:
        with Clients(own, {2.0}) as clients:
            some_answers(clients)
            model, *engines = own.processes()
            os.kill(model, signal.SIGKILL)
            await_that("its engines end with it", lambda: not any(map(is_there, engines)))
            some_answers(clients)
        assert clients.wrong == []

    def test_a_drain_answers_what_has_arrived(self, tmp_path: Path) -> None:
        model = scaling_model(tmp_path / "scaling.onnx", 2.0, slowly=20)
        service = Service(tmp_path, [f"scaling={model}"], "--engines", "1")
        processes = service.processes()
        with ThreadPoolExecutor(4) as threads:
            answers = [threads.submit(service.infer, SAMPLE) for _ in range(4)]
            await_that("they wait", lambda: any(answer.done() for answer in answers))
            assert service.ended() == 0
            assert [answer.result()[0] for answer in answers] == [200] * 4
        assert not any(map(is_there, processes))
        events = (service.run / "events.jsonl").read_text()
        assert '"version_started"' in events

    def test_a_second_signal_ends_the_drain(self, tmp_path: Path) -> None:
        model = scaling_model(tmp_path / "scaling.onnx", 2.0)
        service = Service(tmp_path, [f"scaling={model}"], "--engines", "1", "--hang", "5min")
        processes = service.processes()
        os.kill(processes[1], signal.SIGSTOP)
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as sock:
            sock.sendall(forms_of_requests(1)[0])
            await_that("it is with the engine", lambda: service.status()["versions"]["1"]["pending"] == 1)
            service.process.send_signal(signal.SIGTERM)
            await_that("the drain is told", lambda: "draining" in service.log.read_text())
            assert service.process.poll() is None
            service.process.send_signal(signal.SIGTERM)
            assert service.process.wait(10) == 0
        lines = service.log.read_text().splitlines()
        assert sum("draining" in line for line in lines) == 1
        assert sum("ends at once; requests without an answer: 1" in line for line in lines) == 1
        assert '"outcome":"forced"' in (service.run / "events.jsonl").read_text()
        await_that("all end", lambda: not any(map(is_there, processes)))

    @pytest.mark.parametrize("stopped", [False, True])
    def test_nothing_is_left_after_its_end(self, tmp_path: Path, stopped: bool) -> None:
        service = Service(tmp_path, [f"scaling={scaling_model(tmp_path / 'scaling.onnx', 2.0)}"])
        processes = [*children(service.process.pid), *service.processes()]
        assert len(processes) == 4, "the template, the process with the model, two engines"
        if stopped:
            for pid in processes:
                os.kill(pid, signal.SIGSTOP)
        service.close()
        await_that("all end", lambda: not any(map(is_there, processes)))


class TestVersions:
    def test_each_answer_is_of_one_version(self, own: Service, tmp_path: Path) -> None:
        new = scaling_model(tmp_path / "three.onnx", 3.0)
        old = scaling_model(tmp_path / "two.onnx", 2.0)
        with Clients(own, {2.0, 3.0}) as clients:
            for source, factor in ((new, 3.0), (old, 2.0)):
                some_answers(clients)
                words = ["scaling", str(source), "--url", f"http://127.0.0.1:{own.port}", "--canary", "50%"]
                assert main(["serve", "swap", *words, "--for", "300ms"]) == 0
                assert own.infer(SAMPLE)[1]["outputs"][0]["data"][1] == factor
        assert clients.wrong == []
        assert clients.seen == {2.0, 3.0}
        await_that("the old ones end", lambda: len(own.status()["versions"]) == 1)

    def test_a_request_that_names_a_version_is_answered_by_it(self, own: Service, tmp_path: Path) -> None:
        new = scaling_model(tmp_path / "three.onnx", 3.0)

        def answered_by(label: str) -> tuple[int, Any]:
            path = f"/v2/models/scaling/versions/{label}/infer"
            status, _, text = own.ask("POST", path, json_request(SAMPLE))
            return status, msgspec.json.decode(text)

        with ThreadPoolExecutor(1) as threads:
            change = threads.submit(own.swap, source=str(new), canary_frac=0.5, hold_s=2)
            await_that("it is on trial", lambda: len(own.status()["versions"]) == 2, 30.0)
            for label, factor in (("1", 2.0), ("2", 3.0)) * 4:
                status, answer = answered_by(label)
                assert (status, answer["model_version"]) == (200, label)
                assert answer["outputs"][0]["data"] == (SAMPLE * factor).reshape(-1).tolist()
            assert change.result()[1]["changed"]
        assert answered_by("1")[0] == 404
        assert answered_by("2")[0] == 200

    def test_a_version_that_takes_something_else_is_refused(self, own: Service, tmp_path: Path) -> None:
        wider = scaling_model(tmp_path / "wider.onnx", 3.0, width=5)
        status, answer = own.swap(source=str(wider), hold_s=0)
        assert status == 409
        assert "must take and give" in answer["error"]
        assert own.swap(source="nothing.onnx")[0] == 409
        assert own.swap(sauce=1)[0] == 400


MODULE = """
import torch

class Scaled(torch.nn.Module):
    def __init__(self, factor, fails):
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(factor))
        self.fails = fails

    def forward(self, x):
        if self.fails and bool((x == 13).any()):
            raise ValueError("thirteen")
        if self.fails and bool((x == 14).any()):
            return {"y": (x * self.factor)[1:]}
        return {"y": x * self.factor}

def make():
    return Scaled(2.0, False), torch.zeros(1, 4)

def fails():
    return Scaled(2.0, True), {"x": torch.zeros(1, 4)}

def broken():
    raise RuntimeError("no such weights")
"""


class TestTorch:
    """What models of torch do, or fail to."""

    @pytest.fixture
    def torch_service(self, tmp_path: Path) -> Iterator[Service]:
        (tmp_path / "scaled.py").write_text(MODULE)
        running = Service(tmp_path, ["scaling=scaled.py:fails"])
        yield running
        running.close()

    def test_what_a_model_raises_is_the_answer_of_that_request_alone(self, torch_service: Service) -> None:
        bad = np.full((1, 4), 13, np.float32)

        def asked(values: NDArray[Any]) -> tuple[int, Any]:
            return torch_service.infer(values)

        with ThreadPoolExecutor(8) as threads:
            found = list(threads.map(asked, [SAMPLE, bad] * 8))
        for status, answer in found[::2]:
            assert (status, answer["outputs"][0]["data"]) == (200, (SAMPLE * 2).reshape(-1).tolist())
        for status, answer in found[1::2]:
            assert status == 500
            assert "ValueError: thirteen" in answer["error"]
            assert "scaled.py:12" in answer["error"]

    def test_outputs_that_are_not_as_they_should_be_are_no_answer(self, torch_service: Service) -> None:
        status, answer = torch_service.infer(np.full((2, 4), 14, np.float32))
        assert (status, "must have 2 samples" in answer["error"]) == (500, True)
        status, answer = torch_service.infer(np.full((1, 4), 14, np.float32))
        assert (status, "must be float32 of shape" in answer["error"]) == (500, True)
        assert torch_service.infer(SAMPLE)[0] == 200

    def test_a_version_on_trial_that_fails_goes_and_its_requests_are_answered(self, torch_service: Service) -> None:
        folder = torch_service.log.parent
        source = (folder / "scaled.py").read_text().replace("== 13", "== 1").replace("2.0", "5.0")
        (folder / "worse.py").write_text(source)
        with Clients(torch_service, {2.0, 5.0}) as clients:
            some_answers(clients)
            with ThreadPoolExecutor(1) as threads:
                change = threads.submit(torch_service.swap, source="worse.py:fails", canary_frac=0.5, hold_s=60)
                await_that("it is on trial", lambda: 5.0 in clients.seen or change.done(), 90.0)
                while not change.done():
                    assert torch_service.infer(np.ones((1, 4), np.float32))[0] == 200
                    time.sleep(0.01)
                status, outcome = change.result()
        assert status == 200, outcome
        assert not outcome["changed"]
        assert "failed for" in outcome["reason"]
        assert clients.wrong == []
        assert torch_service.infer(np.ones((1, 4), np.float32))[1]["outputs"][0]["data"] == [2.0] * 4

    def test_a_version_that_does_not_load_leaves_the_old_one(self, torch_service: Service) -> None:
        status, answer = torch_service.swap(source="scaled.py:broken")
        assert status == 409
        assert "no such weights" in answer["error"]
        assert torch_service.infer(SAMPLE)[0] == 200


class TestSources:
    def test_the_faster_form_is_taken_and_both_are_shown(self, tmp_path: Path) -> None:
        forms = tmp_path / "forms"
        forms.mkdir()
        scaling_model(forms / "scaling.onnx", 2.0)
        program = torch.export.export(
            torch.nn.Linear(4, 4), (torch.zeros(3, 4),), dynamic_shapes=({0: torch.export.Dim("n")},)
        )
        torch.export.save(program, forms / "linear.pt2")
        service = Service(tmp_path, ["scaling=forms"])
        assert service.infer(SAMPLE)[1]["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()
        assert service.ended() == 0
        text = service.log.read_text()
        assert "`scaling` on onnx: " in text
        assert "`scaling` on torch: " in text
        assert "`scaling`: onnx, which computes the most samples a second" in text

    def test_an_exported_program_with_weights_and_one_from_safetensors(self, tmp_path: Path) -> None:
        (tmp_path / "linear.py").write_text(
            "import torch\ndef make():\n    return torch.nn.Linear(4, 2), torch.zeros(1, 4)\n"
        )
        module = torch.nn.Linear(4, 2)
        save_file(module.state_dict(), tmp_path / "weights.safetensors")
        program = torch.export.export(module, (torch.zeros(3, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
        torch.export.save(program, tmp_path / "linear.pt2")
        models = ["scaling=linear.pt2", "weighed=linear.py:make@weights.safetensors"]
        service = Service(tmp_path, models, "--engines", "1")
        for name in ("scaling", "weighed"):
            inputs = service.ask("GET", f"/v2/models/{name}")[2]
            (given,) = msgspec.json.decode(inputs)["inputs"]
            body = json_request(SAMPLE).replace(b'"x"', f'"{given["name"]}"'.encode())
            status, _, text = service.ask("POST", f"/v2/models/{name}/infer", body)
            assert status == 200, text
            found = np.array(msgspec.json.decode(text)["outputs"][0]["data"], np.float32).reshape(2, 2)
            with torch.no_grad():
                np.testing.assert_allclose(found, module(torch.from_numpy(SAMPLE)).numpy(), rtol=1e-5)
        assert service.ended() == 0

    def test_other_interfaces_need_the_token(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        create_secret(secret)
        model = scaling_model(tmp_path / "scaling.onnx", 2.0)
        service = Service(tmp_path, [f"scaling={model}"], "--host", "127.0.0.1", "--token-file", str(secret))
        assert service.infer(SAMPLE)[0] == 401
        assert service.ask("GET", "/metrics")[0] == 401
        assert service.infer(SAMPLE, headers={"Authorization": "Bearer no"})[0] == 401
        token = secret.read_text().strip()
        assert service.infer(SAMPLE, headers={"Authorization": f"Bearer {token}"})[0] == 200
        assert service.ended() == 0

    def test_under_a_promise_what_is_late_is_refused(self, tmp_path: Path) -> None:
        """Six times as many clients as can be answered in time: those answered are, the others are told at once."""
        model = scaling_model(tmp_path / "scaling.onnx", 2.0, slowly=40)
        service = Service(tmp_path, [f"scaling={model}"], "--engines", "1", "--slo", "300ms", "--max-batch", "2")
        one_s = service.status()["versions"]["1"]["costs"][0][1]
        count = min(100, int(6 * 0.3 / one_s) + 6)
        with ThreadPoolExecutor(count) as threads:
            found = list(threads.map(lambda _: service.ask(
                "POST", "/v2/models/scaling/infer", json_request(SAMPLE)), range(count)
            ))  # fmt: skip
        statuses = Counter(status for status, _, _ in found)
        assert statuses.keys() == {200, 503}
        late = [headers for status, headers, _ in found if status == 503]
        assert all(int(headers["retry-after"]) >= 1 for headers in late)
        assert service.ended() == 0


class TestChangedSources:
    def test_a_version_that_is_started_again_is_what_it_was(self, tmp_path: Path) -> None:
        code = tmp_path / "code.py"
        text = (
            "import torch\n\nclass Times(torch.nn.Module):\n    def forward(self, x):\n        return {}.0 * x\n\n"
            "def scaling():\n    return Times(), (torch.zeros(2, 4),)\n"
        )
        code.write_text(text.format(2))
        service = Service(tmp_path, [f"scaling={code}:scaling"], "--engines", "1")
        assert service.infer(SAMPLE)[1]["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()
        code.write_text(text.format(3))
        os.kill(service.processes()[0], signal.SIGKILL)

        def refused() -> str | None:
            """Why; what the engine still answers is what it always was."""
            status, answer = service.infer(SAMPLE)
            assert status == 503 or answer["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()
            return answer["error"] if status == 503 else None

        reason = await_that("it is refused", refused)
        assert "`scaling` version 1: its source" in reason
        assert "has changed since it was loaded" in reason
        code.write_text(text.format(2))
        await_that("what it was is there again", lambda: service.infer(SAMPLE)[0] == 200)
        code.unlink()
        os.kill(service.processes()[0], signal.SIGKILL)
        assert "is gone" in await_that("it is refused", refused)
        assert service.log.read_text().count("is gone") == 1
        code.write_text(text.format(5))
        assert service.swap(source=f"{code}:scaling", hold_s=0.0)[1]["changed"]
        assert service.infer(SAMPLE)[1]["outputs"][0]["data"] == (SAMPLE * 5).reshape(-1).tolist()
        assert "Traceback" not in service.log.read_text()
        assert service.ended() == 0

    def test_what_a_function_imports_of_its_project_is_part_of_a_version(self, tmp_path: Path) -> None:
        parts, code = tmp_path / "parts.py", tmp_path / "code.py"
        text = "import torch\n\nclass Times(torch.nn.Module):\n    def forward(self, x):\n        return {}.0 * x\n"
        parts.write_text(text.format(2))
        code.write_text(
            "import torch\nfrom parts import Times\n\ndef scaling():\n    return Times(), (torch.zeros(2, 4),)\n"
        )
        service = Service(tmp_path, [f"scaling={code}:scaling"], "--engines", "1")
        assert service.infer(SAMPLE)[1]["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()
        parts.write_text(text.format(3))
        os.kill(service.processes()[0], signal.SIGKILL)

        def refused() -> str | None:
            status, answer = service.infer(SAMPLE)
            assert status == 503 or answer["outputs"][0]["data"] == (SAMPLE * 2).reshape(-1).tolist()
            return answer["error"] if status == 503 else None

        assert f"`{parts}`, which its source" in await_that("it is refused", refused)
        parts.write_text(text.format(2))
        await_that("what it was is there again", lambda: service.infer(SAMPLE)[0] == 200)
        assert service.ended() == 0


class TestStoppedChanges:
    def swapping(self, tmp_path: Path, service: Service) -> subprocess.Popen[str]:
        """The command, while the new version loads for a minute."""
        code = tmp_path / "slow.py"
        code.write_text("import time\n\ndef scaling():\n    open('loads', 'w').close()\n    time.sleep(60)\n")
        command = [sys.executable, "-m", "stoker", "serve", "swap", "scaling", f"{code}:scaling"]
        command += ["--url", f"http://127.0.0.1:{service.port}"]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRON, cwd=tmp_path
        )
        await_that("it loads", (tmp_path / "loads").exists, 60.0)
        return process

    def test_ctrl_c_stops_it(self, own: Service, tmp_path: Path) -> None:
        process = self.swapping(tmp_path, own)
        process.send_signal(signal.SIGINT)
        assert "the change is stopped: `scaling` keeps the version" in process.communicate(timeout=30)[0]
        assert process.returncode == 130
        newer = scaling_model(tmp_path / "newer.onnx", 3.0)
        await_that("another change may begin", lambda: own.swap(source=str(newer), hold_s=0.0)[0] == 200)
        assert "the change is stopped, as its caller has left; version 1 answers" in own.log.read_text()

    def test_the_end_of_the_service_stops_it(self, own: Service, tmp_path: Path) -> None:
        process = self.swapping(tmp_path, own)
        began_s = time.monotonic()
        assert own.ended() == 0
        assert time.monotonic() - began_s < 20.0
        told = process.communicate(timeout=30)[0]
        assert process.returncode == 2
        assert "was stopped, as the service ends; version 1 answers as before" in told
        assert "Traceback" not in own.log.read_text()
        assert "version 2" not in own.log.read_text()

    def test_a_second_service_in_a_folder_keeps_the_records_of_the_first(self, own: Service, tmp_path: Path) -> None:
        models = [f"scaling={tmp_path / 'scaling.onnx'}"]
        with pytest.raises(AssertionError, match="no running service uses"):
            Service(tmp_path, models)
        assert own.infer(SAMPLE)[0] == 200
        assert own.ended() == 0
        second = Service(tmp_path, models)
        assert second.infer(SAMPLE)[0] == 200
        assert second.ended() == 0
        assert "records of an earlier run in" in second.log.read_text()
        assert f"-{second.process.pid}-" in read_run(second.run).header.run_id
        assert isinstance(read_run(second.run).events[-1], RunEnded)
        assert len(list(second.run.glob("earlier-*"))) == 2
        assert not second.run.with_name("run-2").exists()


def test_a_model_that_mixes_its_batch_is_asked_one_request_at_a_time(tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(
        "import torch\n\nclass Mixes(torch.nn.Module):\n    def forward(self, x):\n        return x - x.mean(0)\n\n"
        "def scaling():\n    return Mixes(), (torch.zeros(2, 4),)\n"
    )
    service = Service(tmp_path, [f"scaling={code}:scaling"], "--engines", "1", "--slo", "30s")
    expected = (SAMPLE - SAMPLE.mean(0)).reshape(-1).tolist()
    with ThreadPoolExecutor(16) as pool:
        values = [SAMPLE, np.ones((1, 4), np.float32)] * 40
        answers = list(pool.map(service.infer, values))
    assert [answer["outputs"][0]["data"] for _, answer in answers] == [expected, [0.0] * 4] * 40
    text = service.log.read_text()
    assert "depends on the other samples of its batch; requests run one at a time" in text
    assert "(--slo 30.0 s; SIGTERM or Ctrl-C drains)" in text
    assert service.ended() == 0
