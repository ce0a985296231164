"""Stores that use equal paths have different names; secrets are in none of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fsspec.config import conf

from stoker.cache.sources.namespaces import namespace_for
from stoker.cache.sources.opening import SourceSpec


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


def test_two_endpoints() -> None:
    one = namespace_for("s3", {"endpoint_url": "http://a:1"})
    assert one != namespace_for("s3", {"endpoint_url": "http://b:1"})
    assert one != namespace_for("s3", {})
    assert one == namespace_for("s3a", {"client_kwargs": {"endpoint_url": "http://a:1/"}, "key": "k"})


def test_an_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = namespace_for("s3", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a:1")
    assert namespace_for("s3", {}) == namespace_for("s3", {"endpoint_url": "http://a:1"}) != usual


def test_an_endpoint_of_fsspecs_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """``FSSPEC_S3_ENDPOINT_URL`` and the files of fsspec end up there."""
    usual = namespace_for("s3", {})
    monkeypatch.setitem(conf, "s3", {"endpoint_url": "http://a:1", "secret": "hidden"})
    assert namespace_for("s3", {}) == namespace_for("s3", {"endpoint_url": "http://a:1"}) != usual
    assert namespace_for("s3", {"endpoint_url": "http://b:1"}) == namespace_for("s3a", {"endpoint_url": "http://b:1/"})
    assert "hidden" not in namespace_for("s3", {})


CONFIG = """
[default]
endpoint_url = http://a:1
[profile other]
region = us-east-1
[profile nested]
services = minio
[services minio]
s3 =
    endpoint_url = http://b:1
"""


@pytest.mark.parametrize(
    ("profile", "endpoint"), [("", "http://a:1"), ("other", ""), ("nested", "http://b:1"), ("missing", "")]
)
def test_an_endpoint_of_the_aws_configuration(tmp_path: Path, profile: str, endpoint: str) -> None:
    (tmp_path / "config").write_text(CONFIG)
    options = {"profile": profile} if profile else {}
    assert namespace_for("s3", options) == namespace_for("s3", {**options, "endpoint_url": endpoint})
    assert f"s3|{endpoint}|" in namespace_for("s3", options)
    (tmp_path / "config").write_text("no [configuration")
    assert "|a" not in namespace_for("s3", options)


def test_an_account_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = namespace_for("abfs", {})
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    assert namespace_for("abfs", {}) == namespace_for("abfs", {"account_name": "a"}) != usual
    assert namespace_for("abfs", {"account_name": "b"}) != namespace_for("abfs", {})


def test_two_accounts() -> None:
    assert namespace_for("abfs", {"account_name": "a"}) != namespace_for("abfs", {"account_name": "b"})
    string = "AccountName=a;AccountKey=hidden;EndpointSuffix=core.windows.net"
    assert "AccountName=a" in namespace_for("abfs", {"connection_string": string})
    assert "hidden" not in namespace_for("abfs", {"connection_string": string})


def test_secrets_do_not_count_and_do_not_show() -> None:
    options = {"key": "hidden", "secret": "hidden", "token": "hidden", "password": "hidden", "account_name": "a"}
    for protocol in ("s3", "abfs", "gs", "sftp", "http", "file", "memory"):
        assert namespace_for(protocol, options) == namespace_for(protocol, {"account_name": "a"})
        assert "hidden" not in namespace_for(protocol, options) + repr(SourceSpec(protocol, options))
