"""Where pages lie in a ring of started workers, and who the workers are."""

from __future__ import annotations

import json

import pytest

from tests.cache.cluster.started import Started

pytestmark = pytest.mark.integration


def test_explain_names_the_owner_and_who_follows(started: Started) -> None:
    nodes, join = started.start_all(2)
    path = started.folder / "object"
    path.write_bytes(b"x" * 1000)
    words = ("explain", f"file://{path}", "--join", join, "--secret-file", str(started.secret))
    words += ("--dir", str(started.folder / "mine"))
    found = json.loads(started.command(*words, "--json").stdout)
    (owner,) = found["owners"]
    assert {owner["node"], *owner["then"]} == set(nodes)
    assert f"Owner   {owner['node']}; lost, {owner['then'][0]}" in started.command(*words).stdout


def test_two_workers_of_one_host_are_two_and_keep_their_places(started: Started) -> None:
    nodes, _ = started.nodes(2)
    join = f"file://{started.folder / 'ring.json'}"
    for node in nodes:
        started.start(node, join)
    said = [started.wait(node)[0] for node in nodes]
    first, second = (line.split(" serves ")[0] for line in said)
    assert first != second
    status = started.command("status", "--join", join, "--secret-file", str(started.secret), "--json")
    assert len(json.loads(status.stdout)["nodes"]) == 2
    started.kill(nodes[0])
    started.start(nodes[0], join)
    assert started.wait(nodes[0])[0].split(" serves ")[0] == first
