"""What a user says of a cluster on Kubernetes, and the rules that the API server and KubeRay would refuse it by."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_MEMORY = re.compile(r"([1-9][0-9]*)(Mi|Gi|Ti)")
_VERSION = re.compile(r"([0-9]+)\.([0-9]+)\.[0-9]+")
_NAME_CHARACTERS = 47
"""KubeRay adds to the name of a RayJob, and a label has 63."""
_NAMESPACE_CHARACTERS = 63
LEAST_RAY = (2, 52)
"""The first Ray with authentication by a token."""


@dataclass(frozen=True, kw_only=True)
class PodGroup:
    """Pods of one kind, of which the autoscaler keeps as many as placement groups need.

    Raises:
        ValueError: a number or a quantity is invalid.
    """

    least: int
    most: int
    cpus: int
    memory: str
    """As Kubernetes writes it, such as ``64Gi``. Half of it is for ``/dev/shm``, which is memory of the pod."""
    gpus: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most:
            raise ValueError(f"pods must be MIN:MAX with 0 <= MIN <= MAX, got {self.least}:{self.most}")
        if self.cpus < 1 or self.gpus < 0:
            raise ValueError(f"a pod must have at least 1 CPU and 0 GPUs, got {self.cpus} and {self.gpus}")
        if _MEMORY.fullmatch(self.memory) is None:
            raise ValueError(f"a pod's memory must be a whole number of Mi, Gi or Ti such as 64Gi, got `{self.memory}`")

    @property
    def shared_memory(self) -> str:
        """Size of ``/dev/shm``."""
        mebibytes = int(self.memory[:-2]) * {"Mi": 1, "Gi": 2**10, "Ti": 2**20}[self.memory[-2:]]
        return f"{max(1, mebibytes // 2)}Mi"


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """A cluster on Kubernetes.

    Raises:
        ValueError: a name, version or path is one that Kubernetes or KubeRay refuses.
    """

    name: str
    namespace: str
    image: str
    """With stoker, Ray, torch and the program; see the Containerfile."""
    ray_version: str
    gpu_group: PodGroup | None
    cpu_group: PodGroup | None
    gpu_resource: str = "nvidia.com/gpu"
    operator_namespace: str = "kuberay-system"
    """Namespace of KubeRay's operator, the only one outside that reaches the head."""
    claim: str = ""
    """PersistentVolumeClaim that every pod mounts: paths must be the same on all nodes."""
    claim_path: str = "/data"
    secret: str = ""
    """Secret whose keys become environment variables, such as those of a store."""
    user_id: int = 1000

    def __post_init__(self) -> None:
        _check_label("name", self.name, _NAME_CHARACTERS)
        for what, value in (("namespace", self.namespace), ("operator namespace", self.operator_namespace)):
            _check_label(what, value, _NAMESPACE_CHARACTERS)
        for what, value in (("claim", self.claim), ("secret", self.secret)):
            if value:
                _check_label(what, value, 253)
        found = _VERSION.fullmatch(self.ray_version)
        if found is None or (int(found[1]), int(found[2])) < LEAST_RAY:
            least = ".".join(map(str, LEAST_RAY))
            raise ValueError(f"Ray must be {least}.0 or later, the first with tokens, got `{self.ray_version}`")
        if not self.image or self.image != self.image.strip() or " " in self.image:
            raise ValueError(f"the image must be a name such as registry.example/team/train:1, got `{self.image}`")
        if not self.claim_path.startswith("/") or self.claim_path == "/":
            raise ValueError(f"a claim must be mounted at an absolute path such as /data, got `{self.claim_path}`")
        if self.user_id < 1:
            raise ValueError(f"pods must run as a user other than root, got the number {self.user_id}")


def _check_label(what: str, value: str, most: int) -> None:
    if _LABEL.fullmatch(value) is None or len(value) > most:
        raise ValueError(
            f"the {what} must be at most {most} small letters, digits and dashes, a letter first, got `{value}`"
        )
