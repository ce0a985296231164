"""`stoker serve swap`: what people are told."""

from __future__ import annotations

import pytest

from stoker.cli.serve import swap
from stoker.core.errors import ServingError


@pytest.mark.parametrize("url", ["garbage", "", "file:///etc/hostname", "http://[bad", "http://a b/", "http://h:x"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ServingError, match="`--url` must be that of `stoker serve run`, got"):
        swap.main(["m", "new.onnx", "--url", url])


def test_a_change_without_traffic_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = {"version": "2", "changed": True, "reason": "0 answers as canary"}
    monkeypatch.setattr(swap, "change_version", lambda *_: outcome)
    assert swap.main(["m", "new.onnx"]) == 0
    assert capsys.readouterr().out == "version 2 answers: 0 answers as canary\n"
