"""Files for Kubernetes: what is rendered passes KubeRay's schemas, and what is misspelt does not."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.kubernetes.manifests import containerfile, network_policy, ray_cluster, ray_job
from stoker.backends.kubernetes.schemas import faults
from stoker.backends.kubernetes.shape import ClusterShape, PodGroup
from stoker.cli.cluster.manifests import main as manifests
from stoker.cli.main import main
from stoker.core.errors import ConfigError

pytest.importorskip("jsonschema")
GPUS = PodGroup(least=1, most=4, cpus=64, memory="512Gi", gpus=8)
CPUS = PodGroup(least=0, most=16, cpus=64, memory="128Gi")
SHAPE = ClusterShape(
    name="train", namespace="ml", image="registry.example/ml/train:1", ray_version="2.60.0", gpu_group=GPUS,
    cpu_group=CPUS, claim="datasets", secret="store",
)  # fmt: skip

groups = st.builds(
    lambda least, more, cpus, memory, unit, gpus: PodGroup(
        least=least, most=least + more, cpus=cpus, memory=f"{memory}{unit}", gpus=gpus
    ),
    st.integers(0, 9), st.integers(0, 99), st.integers(1, 256), st.integers(1, 4096),
    st.sampled_from(["Mi", "Gi", "Ti"]), st.integers(0, 16),
)  # fmt: skip


@given(
    gpus=st.none() | groups, cpus=st.none() | groups, claim=st.sampled_from(["", "data"]),
    secret=st.sampled_from(["", "keys"]),
)  # fmt: skip
def test_whatever_is_rendered_is_known_to_kuberay(
    gpus: PodGroup | None, cpus: PodGroup | None, claim: str, secret: str
) -> None:
    shape = ClusterShape(
        name="train", namespace="ml", image="a/b:1", ray_version="2.52.0", gpu_group=gpus, cpu_group=cpus, claim=claim,
        secret=secret,
    )  # fmt: skip
    documents = [ray_cluster(shape), network_policy(shape), ray_job(shape, ["train.py"], gpus.gpus if gpus else 0)]
    assert [fault for document in documents for fault in faults(document)] == []


def pods(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The pods of a cluster and their names."""
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    yield "head", spec["headGroupSpec"]["template"]
    for group in spec["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


@pytest.mark.parametrize("document", [ray_cluster(SHAPE), ray_job(SHAPE, ["train.py"], 8)], ids=["cluster", "job"])
def test_what_every_cluster_has(document: dict[str, Any]) -> None:
    spec = document["spec"].get("rayClusterSpec", document["spec"])
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    assert {group["groupName"]: (group["minReplicas"], group["maxReplicas"]) for group in spec["workerGroupSpecs"]} == {
        "gpu": (1, 4),
        "cpu": (0, 16),
    }
    for name, template in pods(document):
        (container,) = template["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert volumes[mounts["/dev/shm"]]["emptyDir"]["medium"] == "Memory"
        assert volumes[mounts["/data"]]["persistentVolumeClaim"] == {"claimName": "datasets"}
        assert container["envFrom"] == [{"secretRef": {"name": "store"}}]
        assert template["spec"]["securityContext"]["runAsNonRoot"]
        assert template["spec"].get("automountServiceAccountToken", True) == (name == "head")
        assert template["metadata"]["labels"] == network_policy(SHAPE)["spec"]["podSelector"]["matchLabels"]
        assert container["resources"]["limits"].get("nvidia.com/gpu") == ("8" if name == "gpu" else None)


def test_who_comes_in() -> None:
    first, second = network_policy(SHAPE)["spec"]["ingress"]
    assert first == {"from": [{"podSelector": {"matchLabels": {"stoker-cluster": "train"}}}]}
    assert second["ports"] == [{"protocol": "TCP", "port": 8265}]
    assert "namespaceSelector" in second["from"][0]


def test_a_program_on_several_gpus_starts_under_torchrun() -> None:
    many = ray_job(SHAPE, ["train.py", "--name", "two words"], 4)["spec"]
    assert many["entrypoint"] == (
        "cd /home/ray/app && torchrun --standalone --nproc-per-node=4 -m stoker run --backend ray train.py "
        "--name 'two words'"
    )
    assert (many["entrypointNumGpus"], many["entrypointNumCpus"]) == (4, 8)
    none = ray_job(SHAPE, ["train.py"], 0)["spec"]
    assert none["entrypoint"].endswith("&& stoker run --backend ray train.py")
    assert "entrypointNumGpus" not in none
    with pytest.raises(ValueError, match="which has 8 GPUs, got 9"):
        ray_job(SHAPE, ["train.py"], 9)


def test_fields_that_kuberay_does_not_know_are_named_with_their_place() -> None:
    misspelt = copy.deepcopy(ray_cluster(SHAPE))
    group = misspelt["spec"]["workerGroupSpecs"][0]
    group["replica"] = group.pop("replicas")
    assert any("RayCluster.spec.workerGroupSpecs[0]`" in fault and "'replica'" in fault for fault in faults(misspelt))
    deep = copy.deepcopy(ray_job(SHAPE, ["train.py"], 1))
    deep["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    assert any("containers[0]`" in fault and "imagePullPolice" in fault for fault in faults(deep))
    policy = copy.deepcopy(network_policy(SHAPE))
    policy["spec"]["ingress"][1]["ports"][0]["port"] = 2.5
    assert faults(policy)
    assert faults({"kind": "Pod"}) == ["`kind` must be NetworkPolicy, RayCluster, RayJob, got 'Pod'"]
    assert faults([1]) == ["`kind` must be NetworkPolicy, RayCluster, RayJob, got None"]


def test_what_the_server_fills_in_need_not_be_given() -> None:
    document = ray_cluster(SHAPE)
    for group in document["spec"]["workerGroupSpecs"]:
        del group["minReplicas"], group["maxReplicas"]
    assert faults(document) == []


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "Train"}, "the name must be at most 47 small letters"),
        ({"name": "t" * 48}, "the name must be at most 47"),
        ({"namespace": "a_b"}, "the namespace must be"),
        ({"ray_version": "2.51.3"}, "Ray must be 2.52.0 or later"),
        ({"ray_version": "latest"}, "got `latest`"),
        ({"image": "a b"}, "the image must be"),
        ({"claim_path": "data"}, "absolute path"),
        ({"user_id": 0}, "other than root"),
    ],
)
def test_what_kubernetes_would_refuse(wrong: dict[str, Any], said: str) -> None:
    right = {
        "name": "train", "namespace": "ml", "image": "a", "ray_version": "2.60.0", "gpu_group": GPUS, "cpu_group": None,
    }  # fmt: skip
    with pytest.raises(ValueError, match=said):
        ClusterShape(**(right | wrong))


@pytest.mark.parametrize(
    ("memory", "shared"), [("64Gi", "32768Mi"), ("1Mi", "1Mi"), ("3Gi", "1536Mi"), ("1Ti", "524288Mi")]
)
def test_half_of_a_pods_memory_is_shared(memory: str, shared: str) -> None:
    assert PodGroup(least=0, most=1, cpus=1, memory=memory).shared_memory == shared


def test_the_image_has_the_same_versions_everywhere() -> None:
    text = containerfile(SHAPE, python="3.11", torch="2.13.0", stoker="stoker[ray]==0.1.0")
    assert "FROM rayproject/ray:2.60.0-py311\n" in text
    assert 'ARG STOKER="stoker[ray]==0.1.0"' in text
    assert 'pip install --no-cache-dir "ray==2.60.0" "torch==2.13.0" "$STOKER"' in text


def test_files_are_written_and_checked_after_an_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    options = [
        "cluster",
        "manifests",
        "--namespace",
        "ml",
        "--image",
        "a/b:1",
        "--gpu-pod",
        "8x64x512Gi",
        "--out",
        "k8s",
    ]
    assert main([*options, "--gpus", "2", "--", "train.py", "--epochs", "3"]) == 0
    assert sorted(path.name for path in (tmp_path / "k8s").iterdir()) == [
        "Containerfile",
        "job.yaml",
        "network-policy.yaml",
    ]
    said = capsys.readouterr().out
    assert "Not applied." in said
    assert "kubectl apply -f k8s/job.yaml" in said
    job = tmp_path / "k8s/job.yaml"
    assert yaml.safe_load(job.read_text())["spec"]["entrypointNumGpus"] == 2
    assert main(["cluster", "manifests", "--check", str(job)]) == 0
    job.write_text(job.read_text().replace("maxReplicas", "maxReplica"))
    assert main(["cluster", "manifests", "--check", str(job)]) == 1
    assert "'maxReplica' was unexpected" in capsys.readouterr().out


def test_yaml_for_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "manifests", "--namespace", "ml", "--image", "a/b:1"]) == 0
    kinds = [document["kind"] for document in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["RayCluster", "NetworkPolicy"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--image", "a"], "`--namespace` must be given"),
        (["--namespace", "ml"], "`--image` must be given"),
        (["--namespace", "ml", "--image", "a", "--cpu-workers", "4"], "MIN:MAX such as 0:8, got '4'"),
        (["--namespace", "ml", "--image", "a", "--cpu-workers", "5:4"], "got 5:4"),
        (["--namespace", "ml", "--image", "a", "--cpu-pod", "16x32GB"], "got `32GB`"),
        (["--namespace", "ml", "--image", "a", "--gpu-pod", "8x64"], "GPUSxCPUSxMEMORY"),
        (["--namespace", "ml", "--image", "a", "--gpu-workers", "0:0", "--cpu-workers", "0:0"], "besides the head"),
        (["--namespace", "ml", "--image", "a", "--gpus", "2", "--", "train.py"], "which has 1 GPUs, got 2"),
        (["--check", "nowhere.yaml"], "got `nowhere.yaml`"),
    ],
)
def test_refusals_name_the_rule_and_the_value(arguments: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        manifests(arguments)
