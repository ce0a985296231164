"""Checks documents without a cluster, by the schemas of KubeRay: a field that it does not know is refused.

The API server drops an unknown field without a word, and a misspelt ``replica`` is found when the pods are missing.
Rules that only the API server evaluates (``x-kubernetes-validations``) are not part of this.
"""

from __future__ import annotations

import gzip
import json
from functools import cache
from importlib.resources import files
from typing import Any, cast

from stoker.core.extras import require

Schema = dict[str, Any]
_STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}
_NAME: Schema = {"type": "string"}
_METADATA: Schema = {
    "type": "object",
    "properties": {
        "name": _NAME, "generateName": _NAME, "namespace": _NAME, "labels": _STRINGS, "annotations": _STRINGS,
    },
    "anyOf": [{"required": ["name"]}, {"required": ["generateName"]}],
}  # fmt: skip


def faults(document: object) -> list[str]:
    """What is wrong with a document, by its place; nothing if it would be accepted.

    Args:
        document: one that YAML was read into.

    Raises:
        MissingExtraError: jsonschema is not installed.
    """
    known = schemas()
    kind = cast("dict[str, object]", document).get("kind") if isinstance(document, dict) else None
    schema = known.get(str(kind))
    if schema is None:
        return [f"`kind` must be {', '.join(sorted(known))}, got {kind!r}"]
    validator = require("jsonschema", extra="ray").Draft202012Validator(schema)
    errors = sorted(
        validator.iter_errors(document), key=lambda error: (list(map(str, error.absolute_path)), error.message)
    )
    return [f"`{kind}{_place(error.absolute_path)}`: {error.message}" for error in errors]


@cache
def schemas() -> dict[str, Schema]:
    """The schema of each kind, by its name."""
    data = files("stoker.backends.kubernetes").joinpath("kuberay", "schemas.json.gz").read_bytes()
    crds: dict[str, Schema] = json.loads(gzip.decompress(data))
    made = {kind: _document(kind, "ray.io/v1", crd["properties"]["spec"]) for kind, crd in crds.items()}
    # KubeRay's own policies have the rules of Kubernetes' in them.
    rules = crds["RayCluster"]["properties"]["spec"]["properties"]["networkPolicy"]["properties"]["head"]["properties"]
    ingress: Schema = rules["ingressRules"]
    selector = ingress["items"]["properties"]["from"]["items"]["properties"]["podSelector"]
    spec = {
        "type": "object",
        "properties": {
            "podSelector": selector,
            "policyTypes": {"type": "array", "items": {"enum": ["Ingress", "Egress"]}},
            "ingress": ingress,
            "egress": rules["egressRules"],
        },
        "required": ["podSelector"],
    }
    return made | {"NetworkPolicy": _document("NetworkPolicy", "networking.k8s.io/v1", spec)}


def _document(kind: str, version: str, spec: Schema) -> Schema:
    properties = {"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": _METADATA, "spec": spec}
    required = ["apiVersion", "kind", "metadata", "spec"]
    return _strict({"type": "object", "properties": properties, "required": required})


def _strict(schema: Schema) -> Schema:
    """The schema as the API server reads it, but with no property that it does not list, where it lists any."""
    made = dict(schema)
    if "properties" in schema:
        made["properties"] = {name: _strict(each) for name, each in schema["properties"].items()}
        made.setdefault("additionalProperties", False)
        # The API server fills in defaults before it looks for what is required.
        made["required"] = [name for name in schema.get("required", ()) if "default" not in schema["properties"][name]]
    for place in ("items", "additionalProperties"):
        if isinstance(made.get(place), dict):
            made[place] = _strict(made[place])
    return made


def _place(path: Any) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
