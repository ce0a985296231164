"""Stores that use equal paths have different names; secrets are in none of them."""

from __future__ import annotations

import pytest

from stoker.cache.sources.namespaces import namespace_for
from stoker.cache.sources.opening import SourceSpec


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)


def test_two_endpoints() -> None:
    one = namespace_for("s3", {"endpoint_url": "http://a:1"})
    assert one != namespace_for("s3", {"endpoint_url": "http://b:1"})
    assert one != namespace_for("s3", {})
    assert one == namespace_for("s3a", {"client_kwargs": {"endpoint_url": "http://a:1/"}, "key": "k"})


def test_an_endpoint_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = namespace_for("s3", {})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://a:1")
    assert namespace_for("s3", {}) == namespace_for("s3", {"endpoint_url": "http://a:1"}) != usual


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
