"""Documents for KubeRay's operator from the shape of a cluster: pure, nothing is applied.

What experience with Ray on Kubernetes asks for: authentication by a token, no work on the head's CPUs, a small object
store (batches do not pass through Ray), ``/dev/shm`` in memory (a pod's own has 64 MB), no service account where none
is needed, and a network policy, since Ray listens on all interfaces.
"""

from __future__ import annotations

import shlex
from typing import Any

from stoker.backends.kubernetes.shape import ClusterShape, PodGroup

Document = dict[str, Any]

PROGRAM_FOLDER = "/home/ray/app"
"""Where the Containerfile puts the program."""
_LABEL = "stoker-cluster"
_OBJECT_STORE_BYTES = 256 * 2**20
_HEAD = PodGroup(least=1, most=1, cpus=2, memory="8Gi")
_DASHBOARD_PORT = 8265
_CPUS_PER_GPU = 2
"""CPUs that a training worker itself needs; data workers get theirs from the pool."""
_IDLE_S = 120
_KEEP_S = 3600


def ray_cluster(shape: ClusterShape) -> Document:
    """The cluster that stays: programs of other pods and jobs join it by ``stoker run --backend ray``."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": _metadata(shape, shape.name),
        "spec": _cluster_spec(shape),
    }


def ray_job(shape: ClusterShape, command: list[str], gpus: int) -> Document:
    """A program with a separate cluster, which ends with it.

    Args:
        shape: of the cluster.
        command: the program and its arguments, as `stoker run` takes them.
        gpus: that it trains on, all in one pod.

    Raises:
        ValueError: no pod has so many GPUs.
    """
    most = shape.gpu_group.gpus if shape.gpu_group is not None else 0
    if not 0 <= gpus <= most:
        raise ValueError(f"a job must fit in one pod, which has {most} GPUs, got {gpus}")
    started = ["stoker", "run", "--backend", "ray", *command]
    if gpus > 1:
        started = ["torchrun", "--standalone", f"--nproc-per-node={gpus}", "-m", *started]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": _metadata(shape, shape.name),
        "spec": {
            "entrypoint": f"cd {PROGRAM_FOLDER} && {shlex.join(started)}",
            # The entry point is a process of a pod with these, not of the head.
            "entrypointNumCpus": max(1, _CPUS_PER_GPU * gpus),
            **({"entrypointNumGpus": gpus} if gpus else {}),
            # In the head's pod: a submitter in a separate pod would need a way through the network policy.
            "submissionMode": "SidecarMode",
            "backoffLimit": 0,
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": _KEEP_S,
            "rayClusterSpec": _cluster_spec(shape),
        },
    }


def network_policy(shape: ClusterShape) -> Document:
    """Lets the cluster's pods talk to each other, and the operator to the head; nothing else comes in."""
    peers = {"podSelector": {"matchLabels": {_LABEL: shape.name}}}
    operator = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": shape.operator_namespace}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(shape, shape.name),
        "spec": {
            "podSelector": {"matchLabels": {_LABEL: shape.name}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [peers]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": _DASHBOARD_PORT}]},
            ],
        },
    }


def containerfile(shape: ClusterShape, *, python: str, torch: str, stoker: str) -> str:
    """An image with everything that all pods need, the same on each.

    Args:
        shape: of the cluster.
        python: its version, such as ``3.11``.
        torch: its version.
        stoker: what pip installs, such as ``stoker[ray,cache,s3]``.
    """
    return f"""\
# The same Python, torch and libraries in every pod: a node where they differ is not admitted.
FROM rayproject/ray:{shape.ray_version}-py{python.replace(".", "")}
# As long as it is on no package index: podman build --build-arg STOKER="stoker[cache,ray,s3] @ git+https://..."
ARG STOKER="{stoker}"
RUN pip install --no-cache-dir "ray=={shape.ray_version}" "torch=={torch}" "$STOKER"
WORKDIR {PROGRAM_FOLDER}
COPY --chown={shape.user_id} . .
# What the program imports.
RUN if [ -f requirements.txt ]; then pip install --no-cache-dir -r requirements.txt; fi
USER {shape.user_id}
"""


def _metadata(shape: ClusterShape, name: str) -> Document:
    return {"name": name, "namespace": shape.namespace, "labels": {_LABEL: shape.name}}


def _cluster_spec(shape: ClusterShape) -> Document:
    groups = (("gpu", shape.gpu_group), ("cpu", shape.cpu_group))
    return {
        "rayVersion": shape.ray_version,
        "authOptions": {"mode": "token"},
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"version": "v2", "idleTimeoutSeconds": _IDLE_S, "upscalingMode": "Default"},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0", "object-store-memory": str(_OBJECT_STORE_BYTES)},
            "template": _template(shape, "ray-head", _HEAD, is_head=True),
        },
        "workerGroupSpecs": [_worker_group(shape, name, group) for name, group in groups if group is not None],
    }


def _worker_group(shape: ClusterShape, name: str, group: PodGroup) -> Document:
    return {
        "groupName": name,
        "replicas": group.least,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        "rayStartParams": {"object-store-memory": str(_OBJECT_STORE_BYTES)},
        "template": _template(shape, "ray-worker", group, is_head=False),
    }


def _template(shape: ClusterShape, container: str, group: PodGroup, *, is_head: bool) -> Document:
    resources: Document = {"cpu": str(group.cpus), "memory": group.memory}
    if group.gpus:
        resources[shape.gpu_resource] = str(group.gpus)
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Document] = [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": group.shared_memory}}]
    if shape.claim:
        mounts.append({"name": "data", "mountPath": shape.claim_path})
        volumes.append({"name": "data", "persistentVolumeClaim": {"claimName": shape.claim}})
    made: Document = {
        "name": container,
        "image": shape.image,
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "env": [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": mounts,
    }
    if shape.secret:
        made["envFrom"] = [{"secretRef": {"name": shape.secret}}]
    return {
        "metadata": {"labels": {_LABEL: shape.name}},
        "spec": {
            # The autoscaler in the head's pod asks the API server for pods; workers ask it for nothing.
            **({} if is_head else {"automountServiceAccountToken": False}),
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": shape.user_id,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [made],
            "volumes": volumes,
        },
    }
