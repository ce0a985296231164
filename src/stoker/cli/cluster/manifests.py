"""`stoker cluster manifests`: a cluster's files for Kubernetes, checked here, applied by the user."""

from __future__ import annotations

import argparse
import platform
import re
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stoker._version import __version__
from stoker.backends.kubernetes.manifests import Document, containerfile, network_policy, ray_cluster, ray_job
from stoker.backends.kubernetes.schemas import faults
from stoker.backends.kubernetes.shape import ClusterShape, PodGroup
from stoker.cli.arguments import Parser, split_program, whole
from stoker.cli.output import write_text
from stoker.core.errors import ConfigError
from stoker.core.extras import require

_EPILOG = """\
Nothing is applied. What is written was checked with the schemas of KubeRay 1.7; it needs an operator of 1.5.1 or later.
examples:
  stoker cluster manifests --namespace ml --image registry.example/ml/train:1 --out k8s
  stoker cluster manifests --namespace ml --image registry.example/ml/train:1 \\
      --gpu-workers 1:4 --gpu-pod 8x64x512Gi --cpu-workers 0:16 --cpu-pod 64x128Gi \\
      --claim datasets:/data --gpus 8 --out k8s -- train.py --epochs 90
  stoker cluster manifests --check k8s/cluster.yaml     # after you have edited it"""


_HEAD = "# Made by `stoker cluster manifests`; after a change: `stoker cluster manifests --check`."


def main(argv: list[str]) -> int:
    """Renders or checks; 1 if what is checked would be refused.

    Raises:
        ConfigError: an option is invalid, or a file cannot be read or written.
        MissingExtraError: PyYAML or jsonschema is not installed.
    """
    words, command = split_program(argv)
    arguments = _parser().parse_args(words)
    for package in ("yaml", "jsonschema"):
        require(package, extra="ray")
    if arguments.check is not None:
        return _check(arguments.check)
    for option in ("namespace", "image"):
        if getattr(arguments, option) is None:
            raise ConfigError(f"`--{option}` must be given, got nothing; see `stoker cluster manifests --help`")
    try:
        shape = _shape(arguments)
        documents = {"network-policy.yaml": network_policy(shape)}
        documents |= {"job.yaml": ray_job(shape, command, _gpus(arguments, shape))} if command else {
            "cluster.yaml": ray_cluster(shape)
        }  # fmt: skip
    except ValueError as error:
        raise ConfigError(f"{error}; see `stoker cluster manifests --help`") from None
    wrong = [fault for document in documents.values() for fault in faults(document)]
    if wrong:  # a mistake of ours, which no user can mend
        raise AssertionError("; ".join(wrong))
    _write(arguments, shape, dict(sorted(documents.items())))
    return 0


def _write(arguments: argparse.Namespace, shape: ClusterShape, documents: dict[str, Document]) -> None:
    if arguments.out is None:
        sys.stdout.write("---\n".join(_yaml(document) for document in documents.values()))
        return
    folder = Path(arguments.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"`--out` must be a folder that can be made, got `{folder}`: {error.strerror}") from error
    for name, document in documents.items():
        write_text(_yaml(document), str(folder / name), "--out")
    python = ".".join(platform.python_version_tuple()[:2])
    stoker = f"stoker[cache,ray,s3]=={__version__}"
    write_text(
        containerfile(shape, python=python, torch=_torch_version(), stoker=stoker), str(folder / "Containerfile"),
        "--out",
    )  # fmt: skip
    print(
        "\nNot applied. Next, in the folder of the program:\n"
        f"  podman build -f {folder / 'Containerfile'} -t {shape.image} . && podman push {shape.image}\n"
        + "\n".join(f"  kubectl apply -f {folder / name}" for name in reversed(documents))
    )


def _check(path: str) -> int:
    yaml = require("yaml", extra="ray")
    try:
        documents: list[Any] = [each for each in yaml.safe_load_all(Path(path).read_text("utf-8")) if each is not None]
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"`--check` must name a file with YAML, got `{path}`: {error}") from None
    if not documents:
        raise ConfigError(f"`--check` must name a file with YAML documents, got `{path}`, which has none")
    found = [fault for document in documents for fault in faults(document)]
    for fault in found:
        print(f"{path}: {fault}")
    if not found:
        print(f"{path}: no field that KubeRay does not know in {', '.join(str(each['kind']) for each in documents)}")
    return 1 if found else 0


def _yaml(document: Document) -> str:
    text: str = require("yaml", extra="ray").safe_dump(document, sort_keys=False, width=100)
    return (
        "# Made by `stoker cluster manifests`; check it after a change with `stoker cluster manifests --check`.\n"
        + text
    )


def _shape(arguments: argparse.Namespace) -> ClusterShape:
    gpus, cpus, memory = arguments.gpu_pod
    with_gpus = _group(arguments.gpu_workers, cpus=cpus, memory=memory, gpus=gpus)
    without = _group(arguments.cpu_workers, cpus=arguments.cpu_pod[0], memory=arguments.cpu_pod[1])
    if with_gpus is None and without is None:
        raise ValueError("there must be pods besides the head, got a maximum of 0 for both kinds")
    claim, _, path = arguments.claim.partition(":")
    return ClusterShape(
        name=arguments.name, namespace=arguments.namespace, image=arguments.image, ray_version=_ray(arguments.ray),
        gpu_resource=arguments.gpu_resource, operator_namespace=arguments.operator_namespace, claim=claim,
        claim_path=path or "/data", secret=arguments.secret, gpu_group=with_gpus, cpu_group=without,
    )  # fmt: skip


def _group(pods: tuple[int, int], *, cpus: int, memory: str, gpus: int = 0) -> PodGroup | None:
    return PodGroup(least=pods[0], most=pods[1], cpus=cpus, memory=memory, gpus=gpus) if pods != (0, 0) else None


def _gpus(arguments: argparse.Namespace, shape: ClusterShape) -> int:
    if arguments.gpus is not None:
        return arguments.gpus
    return shape.gpu_group.gpus if shape.gpu_group is not None else 0


def _ray(given: str | None) -> str:
    if given is not None:
        return given
    try:
        return version("ray")
    except PackageNotFoundError:
        raise ConfigError(
            "`--ray` must be the version of Ray in the image, got nothing; none is installed here"
        ) from None


def _torch_version() -> str:
    try:
        return version("torch").partition("+")[0]
    except PackageNotFoundError:
        return "2.13.0"


def _pods(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,4}):([0-9]{1,4})", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be MIN:MAX such as 0:8, got {text!r}")
    return int(found[1]), int(found[2])


def _gpu_pod(text: str) -> tuple[int, int, str]:
    found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,4})x(\w+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be GPUSxCPUSxMEMORY such as 8x64x512Gi, got {text!r}")
    return int(found[1]), int(found[2]), found[3]


def _cpu_pod(text: str) -> tuple[int, str]:
    found = re.fullmatch(r"([0-9]{1,4})x(\w+)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"must be CPUSxMEMORY such as 64x128Gi, got {text!r}")
    return int(found[1]), found[2]


def _parser() -> Parser:
    made = Parser(
        prog="stoker cluster manifests",
        usage="stoker cluster manifests --namespace NAMESPACE --image IMAGE [options] [-- PROGRAM [ARGUMENTS]]",
        description="Writes a RayCluster for KubeRay, or a RayJob if a program is given, with its network policy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add: Callable[..., object] = made.add_argument
    add("--namespace", metavar="NAME", help="where the cluster goes")
    add("--image", metavar="IMAGE", help="of all pods; a Containerfile for it is written with --out")
    add("--name", default="stoker", metavar="NAME", help="of the cluster (default: stoker)")
    add("--out", metavar="FOLDER", help="write files there (default: print YAML)")
    add("--gpu-workers", type=_pods, default=(0, 1), metavar="MIN:MAX", help="pods with GPUs (default: 0:1)")
    add("--gpu-pod", type=_gpu_pod, default=(1, 8, "64Gi"), metavar="GPUSxCPUSxMEMORY",
        help="each of them (default: 1x8x64Gi)")  # fmt: skip
    add("--cpu-workers", type=_pods, default=(0, 4), metavar="MIN:MAX",
        help="pods for data workers alone (default: 0:4)")  # fmt: skip
    add("--cpu-pod", type=_cpu_pod, default=(16, "32Gi"), metavar="CPUSxMEMORY",
        help="each of them (default: 16x32Gi)")  # fmt: skip
    add("--gpus", type=whole(0, 64), metavar="N", help="GPUs of the program (default: those of a pod)")
    add("--claim", default="", metavar="CLAIM[:PATH]", help="a PersistentVolumeClaim that all pods mount (at /data)")
    add("--secret", default="", metavar="NAME", help="a Secret whose keys become environment variables of all pods")
    add("--gpu-resource", default="nvidia.com/gpu", metavar="NAME", help="what GPUs are called there")
    add("--operator-namespace", default="kuberay-system", metavar="NAME", help="where KubeRay's operator runs")
    add("--ray", metavar="VERSION", help="of Ray in the image (default: the installed one)")
    add("--check", metavar="FILE", help="check a file instead of writing one")
    return made
