"""Models behind URLs: which files are fetched, how they are named, and what a service does with them."""

from __future__ import annotations

import asyncio
import functools
import http.server
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import stoker.cache
from stoker.cache.models.folders import with_own_name
from stoker.core.errors import ConfigError, ModelFileError, ServingError
from stoker.run.serving import fetch_main
from stoker.run.serving.fetch_main import bring
from stoker.run.serving.fetching import _answer
from stoker.run.serving.onnx_files import external_files
from stoker.run.serving.sources import forms_of, is_model_file, remote_part, split_name
from tests.deploy.test_package import small
from tests.serve.service import Service, scaling_model
from tests.waiting import await_that

ONE = np.ones((1, 4), np.float32)


@pytest.mark.parametrize(
    ("source", "url", "name"),
    [
        ("https://example.com/a/m.onnx", "https://example.com/a/m.onnx", "m"),
        ("https://example.com/a/m.onnx?sig=x/y.z", "https://example.com/a/m.onnx?sig=x/y.z", "m"),
        ("s3://bucket/digits.pkg/", "s3://bucket/digits.pkg/", "digits"),
        ("ftp://user@host/m.pt2", "ftp://user@host/m.pt2", "m"),
        ("file.py:make@s3://bucket/w.safetensors", "", "make"),
        ("m.onnx", "", "m"),
    ],
)
def test_what_is_fetched_and_its_name(source: str, url: str, name: str) -> None:
    assert remote_part(source) == (url, "")
    assert split_name(source)[0] == name
    assert split_name(f"other={source}") == ("other", source)


def test_what_is_no_url_is_refused() -> None:
    for each in (split_name, is_model_file):
        with pytest.raises(ConfigError, match="must be a URL, got one with Invalid IPv6"):
            each("http://[x/m.onnx")


@pytest.mark.parametrize("line", [b"", b'{"path":"/tm', b"nonsense\n", b'{"path":1}\n', b'"\xff"\n', b"x" * 300_000])
def test_what_a_process_that_fetches_says_is_not_trusted(line: bytes) -> None:
    async def said() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(line)
        reader.feed_eof()
        await _answer(reader, "s3://b/m.onnx")

    with pytest.raises(ServingError, match="must be a model that can be read here"):
        asyncio.run(said())


def test_errors_of_stores_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(url: str, **_: object) -> Path:
        raise OSError("\udcff" * 100_000)

    monkeypatch.setattr(fetch_main, "bring", fails)
    found = fetch_main._found("s3://b/\udcff.onnx", False)
    assert len(msgspec.json.encode(found)) < 1 << 16
    assert found.error.startswith("`s3://b/\\udcff.onnx` must be a model that can be read here, got OSError")


def test_forms_of_what_was_fetched(tmp_path: Path) -> None:
    scaling_model(tmp_path / "m.onnx", 2.0)
    (form,) = forms_of("https://h/a.onnx?x=1", 2, tmp_path / "m.onnx")
    assert (form.engine, form.path, form.threads) == ("onnx", str(tmp_path / "m.onnx"), 2)
    assert form.text == "https://h/a.onnx?x=1"  # not a path of a copy
    assert [each.engine for each in forms_of("s3://b/folder", 1, tmp_path)] == ["onnx"]
    (tmp_path / "manifest.json").write_text("{}")
    source = f"s3://b/folder@{tmp_path}"
    assert remote_part(source) == ("s3://b/folder", str(tmp_path))
    forms = forms_of(source, 1, tmp_path)
    assert [(each.engine, each.design) for each in forms] == [("int", ""), ("onnx", ""), ("rtl", str(tmp_path))]
    assert is_model_file("https://h/m.pt2?x=.txt")
    assert not is_model_file("https://h/m.txt?x=.pt2")


def external_model(path: Path, factor: float, *, external: bool = True) -> Path:
    """A model with its weights in other files: one of a branch, and one large enough for a file of the cache's own."""
    weight = numpy_helper.from_array(np.full((1, 4), factor, np.float32), "w")
    branch = helper.make_graph(
        [helper.make_node("Identity", ["v"], ["out"])], "branch", [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(np.ones((1, 4), np.float32), "v")],
    )  # fmt: skip
    constant = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    nodes = [
        constant,
        helper.make_node("If", ["yes"], ["one"], then_branch=branch, else_branch=branch),
        helper.make_node("Mul", ["x", "w"], ["z"]),
        helper.make_node("Mul", ["z", "one"], ["same"]),
        helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0),
        helper.make_node("Mul", ["same", "most"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("x", "y")]
    big = numpy_helper.from_array(np.ones(1 << 20, np.float32), "big")
    model = helper.make_model(
        helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight, big]), opset_imports=[helper.make_opsetid("", 18)]
    )
    model.ir_version = 9
    onnx.save(model, path, save_as_external_data=external, all_tensors_to_one_file=False, size_threshold=0)
    return path


def test_files_that_an_onnx_model_needs(tmp_path: Path) -> None:
    assert external_files(external_model(tmp_path / "m.onnx", 2.0)) == ["big", "v", "w"]
    assert external_files(scaling_model(tmp_path / "all.onnx", 2.0)) == []
    (tmp_path / "no.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="must be an ONNX file"):
        external_files(tmp_path / "no.onnx")


@pytest.mark.parametrize("name", ["/etc/passwd", "../w", "a/../../w", "a/../w", ".", "a/..", "./..", "a\\..\\w"])
def test_weights_outside_of_the_models_folder_are_refused(tmp_path: Path, name: str) -> None:
    """Names that a stranger wrote into a file: a service would read and link what they lead to."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=name)
    graph = helper.make_graph([], "g", [], [], [tensor])
    (tmp_path / "m.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(ValueError, match="below its folder"):
        external_files(tmp_path / "m.onnx")


def test_only_links_of_materialised_folders_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ModelFileError, match="materialised"):
        with_own_name(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()


def times_one(path: Path) -> NDArray[np.float32]:
    """What a model makes of ones."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": ONE})[0], np.float32)


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[None]:
    """The cache keeps local files too, as it keeps those of a store."""
    stoker.cache.install(directory=tmp_path / "pages", limit_bytes=64 << 20, rules="file://* always")
    yield
    stoker.cache.uninstall()


@pytest.mark.usefixtures("cached")
def test_weights_in_other_files_come_along_and_are_one_copy(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    external_model(made / "m.onnx", 3.0)
    found = bring(f"file://{made}/m.onnx", progress=False)
    assert np.array_equal(times_one(found), 3.0 * ONE)
    assert (found.parent / "big").stat().st_nlink == 2  # the cache's file by another name
    (tmp_path / "plain").mkdir()
    external_model(tmp_path / "plain/m.onnx", 2.0, external=False)
    found = bring(f"file://{tmp_path}/plain", progress=False)
    assert (found / "m.onnx").resolve().is_relative_to(tmp_path / "pages")
    external_model(tmp_path / "plain/m.onnx", 4.0, external=False)  # the same URL again means what is there now
    assert np.array_equal(times_one(bring(f"file://{tmp_path}/plain/m.onnx", progress=False)), 4.0 * ONE)


def test_a_folder_of_any_store(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/models/both/m.onnx", scaling_model(tmp_path / "m.onnx", 2.0).read_bytes())
    memory.pipe("/models/both/notes.txt", b"large")
    memory.pipe("/models/none/notes.txt", b"")
    found = bring("memory://models/both", progress=False)
    assert [path.name for path in found.iterdir()] == ["m.onnx"]  # nothing else is fetched
    with pytest.raises(ConfigError, match=r"must have a \.pt2 or an \.onnx file, or be a package"):
        bring("memory://models/none", progress=False)


class _Files(http.server.SimpleHTTPRequestHandler):
    def list_directory(self, path: object) -> None:
        """As most servers: files, no lists of them."""
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and its URL."""
    folder = tmp_path / "site"
    folder.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_package_of_a_web_server_that_lists_nothing(site: tuple[Path, str]) -> None:
    from stoker.deploy.package.folder import read_package, write_package

    folder, url = site
    digest = write_package(folder / "small.pkg", small(), "small")
    assert read_package(bring(f"{url}/small.pkg", progress=False)).digest == digest
    assert read_package(bring(f"{url}/small.pkg/", progress=False)).digest == digest


@pytest.mark.integration
@pytest.mark.timeout(120)
def test_a_service_of_urls_and_a_change_that_cannot_be_fetched(site: tuple[Path, str], tmp_path: Path) -> None:
    folder, url = site
    scaling_model(folder / "one.onnx", 2.0)
    external_model(folder / "two.onnx", 3.0)
    service = Service(tmp_path, [f"scaling={url}/one.onnx"], "--engines", "1")
    try:
        assert f"version 1: {url}/one.onnx on onnx" in service.log.read_text()
        assert service.infer(ONE)[1]["outputs"][0]["data"] == [2.0] * 4
        status, told = service.swap(source=f"{url}/none.onnx", hold_s=0.1)
        assert status == 409
        assert f"`{url}/none.onnx` must be a model that can be read here, got FileNotFoundError" in told["error"]
        assert service.infer(ONE)[1]["outputs"][0]["data"] == [2.0] * 4
        status, outcome = service.swap(source=f"{url}/two.onnx", hold_s=0.1)
        assert (status, outcome.get("changed")) == (200, True), outcome
        assert service.infer(ONE)[1]["outputs"][0]["data"] == [3.0] * 4
        copies = f"stoker-copies-*/{url.removeprefix('http://')}"
        places = Path(tempfile.gettempdir())
        await_that("the old version's copy is gone", lambda: not list(places.glob(f"{copies}/one.onnx")))
        assert list(places.glob(f"{copies}/two.onnx"))
    finally:
        service.close()  # kills it
    await_that("no copy is left", lambda: not list(places.glob(copies)))
