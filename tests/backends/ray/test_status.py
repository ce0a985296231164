"""`stoker cluster status` as lines."""

from __future__ import annotations

import pytest

from stoker.backends.ray.observing import SeenCluster, SeenGrant, SeenLink, SeenNode
from stoker.cli.cluster.controls import change_of, main, sentence
from stoker.cli.cluster.status import render
from stoker.cli.cluster.up import _parser
from stoker.core.errors import ConfigError
from stoker.scale.cluster.controls import ClusterControls


def test_nodes_with_those_who_hold_their_cpus_and_what_comes_from_there() -> None:
    near = SeenNode(name="a", node_id="1", address="10.0.0.1", cpus=8, gpus=1, free_cpus=5)
    gone = SeenNode(name="b", node_id="2", address="10.0.0.2", cpus=4, gpus=0, free_cpus=4, is_draining=True)
    grants = [SeenGrant(job="train-17", node="a", cpus=3), SeenGrant(job="train-17", node="", cpus=1)]
    links = [SeenLink(job="train-17", node="a", workers=2, bytes_per_s=23_400_000)]
    lines = render("10.0.0.1:6379", SeenCluster(nodes=[near, gone], grants=grants, links=links))
    assert [" ".join(line.split()) for line in lines] == [
        "cluster at 10.0.0.1:6379: 2 nodes",
        "a 10.0.0.1 5 of 8 CPUs free, 1 GPU; data workers: train-17 3",
        "2 workers send train-17 23.4 MB/s",
        "b 10.0.0.2 4 of 4 CPUs free, leaves soon",
        "1 job with data workers; 1 CPU waited for",
    ]


def test_what_was_chosen_is_shown() -> None:
    words = ["--objective", "fair", "--grace", "10s", "--quota", "ann=16", "--quota", "bob=8", "--weight", "ann=1.5"]
    controls = change_of(_parser().parse_args(words)).of(ClusterControls())
    assert sentence(controls) == "CPUs are divided by fair; grace 10.0 s; quota ann 16, bob 8; weight ann 1.5"
    assert sentence(change_of(_parser().parse_args(["--quota", "bob=none"])).of(controls)).endswith(
        "quota ann 16; weight ann 1.5"
    )
    lines = render("10.0.0.1:6379", SeenCluster(nodes=[], grants=[], links=[], controls=controls))
    assert lines[-1] == sentence(controls)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--quota", "16"], "`--quota` must be USER= and a whole number of CPUs"),
        (["--quota", "ann=-1"], "`quotas` must not be negative, got -1 for `ann`"),
        (["--weight", "ann=0"], "`weights` must be positive"),
        (["--objective", "first-come"], "`--objective` must be one of jct, throughput, fair"),
        (["--grace", "soon"], "`--grace` must be a positive time"),
    ],
)
def test_a_wrong_choice_is_named(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match="stoker cluster set") as caught:
        main(words)
    assert said in str(caught.value)
