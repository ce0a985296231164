"""Certificates made by `openssl`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def certificate(folder: Path, name: str, host: str = "127.0.0.1") -> Path:
    """A certificate that vouches for itself, with its key in one file."""
    path = folder / f"{name}.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{host}"),
            *("-keyout", str(path), "-out", str(folder / f"{name}.crt")),
        ],
        check=True,
        capture_output=True,
    )
    with path.open("ab") as file:
        file.write((folder / f"{name}.crt").read_bytes())
    return path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    folder = tmp_path_factory.mktemp("certificates")
    return {
        "right": certificate(folder, "right"),
        "wrong": certificate(folder, "wrong"),
        "elsewhere": certificate(folder, "elsewhere", "127.0.0.9"),
    }
