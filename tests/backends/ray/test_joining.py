"""Which cluster is joined, and why one is not, from what it answers."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from stoker.backends.ray.installed import check_installed
from stoker.backends.ray.joining import ProbeResult, RayTarget, ray_environment, target_of, why_not_joined
from stoker.core.errors import ConfigError, MissingExtraError
from tests.backends.ray.conftest import needs_ray

OWN = ("10.0.0.7:6379", "/state/token")
TARGET = RayTarget(address="10.0.0.7:6379", source="RAY_ADDRESS")
HERE = ("2.60.0", "3.11.7")
IN = ProbeResult(lets_in=True, ray="2.60.0", python="3.11.2")
OUT = ProbeResult(lets_in=False)


class TestTarget:
    def test_none(self) -> None:
        assert target_of({}, None) is None

    def test_the_one_that_stoker_started(self) -> None:
        found = target_of({"RAY_ADDRESS": " "}, OWN)
        assert found == RayTarget(address=OWN[0], source="the cluster that stoker started", token_file=OWN[1])

    def test_the_variable_goes_first(self) -> None:
        found = target_of({"RAY_ADDRESS": "b:1"}, OWN)
        assert found == RayTarget(address="b:1", source="RAY_ADDRESS")

    def test_the_variable_names_our_own(self) -> None:
        environ = {"RAY_ADDRESS": OWN[0]}
        assert target_of(environ, OWN) == RayTarget(address=OWN[0], source="RAY_ADDRESS", token_file=OWN[1])
        told = target_of(environ | {"RAY_AUTH_TOKEN_PATH": "/mine"}, OWN)
        assert told is not None
        assert "RAY_AUTH_TOKEN_PATH" not in ray_environment(told, with_token=True), "the user's own stays"

    @pytest.mark.parametrize("address", ["auto", "local", "10.0.0.7", "10.0.0.7:x", ":6379", "10.0.0.7:0"])
    def test_no_address(self, address: str) -> None:
        with pytest.raises(ConfigError, match="`RAY_ADDRESS` must be the address of Ray's head"):
            target_of({"RAY_ADDRESS": address}, OWN)

    def test_a_server_for_clients(self) -> None:
        with pytest.raises(ConfigError, match="leave out `ray://`"):
            target_of({"RAY_ADDRESS": "ray://10.0.0.7:10001"}, OWN)


class TestWhyNot:
    def why(self, stranger: ProbeResult, ours: ProbeResult, *, insecure: bool = False) -> str:
        return why_not_joined(TARGET, stranger, ours, HERE, insecure=insecure)

    def test_joined(self) -> None:
        assert not self.why(OUT, IN)

    def test_one_that_lets_anybody_in_is_refused_unless_that_is_accepted(self) -> None:
        assert "accept that by --insecure" in self.why(IN, IN)
        assert "accept that by --insecure" in self.why(IN, OUT)
        assert not self.why(IN, OUT, insecure=True)

    def test_a_wrong_token(self) -> None:
        assert "set RAY_AUTH_TOKEN_PATH" in self.why(OUT, OUT)
        assert "set RAY_AUTH_TOKEN_PATH" in self.why(OUT, OUT, insecure=True)

    def test_no_head_of_ray(self) -> None:
        odd = ProbeResult(lets_in=False, error="RpcError: Timed out")
        assert "got RpcError: Timed out" in self.why(odd, odd)

    def test_a_machine_that_is_no_node(self) -> None:
        away = ProbeResult(lets_in=True, ray="2.60.0", python="3.11.7", is_node=False)
        command = "ray start --address=10.0.0.7:6379 --num-cpus=0"
        assert self.why(OUT, away).endswith(f"here: RAY_AUTH_MODE=token {command}")
        assert self.why(away, OUT, insecure=True).endswith(f"here: {command}")

    def test_versions(self) -> None:
        assert "pip install ray==2.59.1" in self.why(OUT, ProbeResult(lets_in=True, ray="2.59.1", python="3.11.7"))
        other = ProbeResult(lets_in=True, ray="2.60.0", python="3.12.1")
        assert "must have Python 3.11 as this one, got 3.12.1" in self.why(OUT, other)


class TestInstalled:
    def test_without_ray_the_pip_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
        monkeypatch.setitem(__import__("sys").modules, "ray", None)
        with pytest.raises(MissingExtraError, match=r'pip install "stoker\[ray\]"'):
            check_installed()

    def test_one_that_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        needs_ray()
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.51.2")
        with pytest.raises(ConfigError, match=r"at least 2\.52.*got 2\.51\.2"):
            check_installed()
