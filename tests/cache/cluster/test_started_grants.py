"""`stoker cache start --grant`: what is not granted is denied, over real connections."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.names import ObjectName
from stoker.cli.cache.mounts import grants_of, mounts_of
from stoker.core.errors import ConfigError
from tests.cache.cluster.started import Started
from tests.cache.cluster.worker_program import FILES

SECRETS = "".join(f"{name} {name[0] * 40}\n" for name in ("default", "alice", "bob"))


def own(folder: Path, name: str) -> Path:
    path = folder / f"secret-of-{name}"
    path.write_text(next(line for line in SECRETS.splitlines() if line.startswith(name)) + "\n")
    path.chmod(0o600)
    return path


@pytest.mark.integration
def test_a_client_reads_what_its_name_is_granted(started: Started) -> None:
    started.secret.write_text(SECRETS)
    (node,), join = started.nodes(1)
    for name in ("public", "private"):
        (started.folder / name).mkdir()
        (started.folder / name / "object").write_bytes(name.encode())
    public = f"files{started.folder}/public"
    started.start(node, join, "--grant", f"alice={public}", "--grant", "bob=files")
    started.wait(node)
    seen = {}
    for name in ("alice", "bob", "default"):
        settings = ClientSettings(join=join, secret_file=own(started.folder, name), identity=name, timeout_s=8.0)
        client = PeerClient(settings)
        started.clients.append(client)
        for folder in ("public", "private"):
            found = client.stat(ObjectName(FILES.namespace, str(started.folder / folder / "object")))
            seen[name, folder] = found is not None
    assert seen == {
        ("alice", "public"): True,
        ("alice", "private"): False,
        ("bob", "public"): True,
        ("bob", "private"): True,
        ("default", "public"): True,
        ("default", "private"): True,
    }


def test_without_grants_everyone_reads_what_is_mounted() -> None:
    mounts = mounts_of(["train=s3://bucket/train", "files=file:///data"])
    assert [(grant.identity, grant.prefix) for grant in grants_of([], mounts)] == [
        ("*", "bucket/train"),
        ("*", "/data"),
    ]
    assert [mounted.root for mounted in mounts.values()] == ["bucket/train/", "/data/"]


def test_the_first_grant_takes_the_rest_from_everyone() -> None:
    mounts = mounts_of(["train=s3://bucket/train"])
    found = [(grant.identity, grant.prefix) for grant in grants_of(["alice=train/images"], mounts)]
    assert found == [("default", "bucket/train"), ("alice", "bucket/train/images")]


@pytest.mark.parametrize("text", ["alice", "=train", "alice=other", "alice=other/train", ""])
def test_a_grant_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be IDENTITY=MOUNT or IDENTITY=MOUNT/PATH with a mount of train"):
        grants_of([text], mounts_of(["train=s3://bucket/train"]))
