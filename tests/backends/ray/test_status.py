"""`stoker cluster status` as lines."""

from __future__ import annotations

from stoker.backends.ray.observing import SeenCluster, SeenGrant, SeenLink, SeenNode
from stoker.cli.cluster.status import render


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
