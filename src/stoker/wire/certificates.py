"""Certificates that a process makes for itself, and that nobody else keeps."""

from __future__ import annotations

import datetime
import os

from stoker.core.extras import require
from stoker.wire.tls import OwnCertificate

_DAYS = 3650
"""It ends with its process; a clock that is wrong must not end a run."""


def create_certificate() -> OwnCertificate:
    """A fresh key, and a certificate that vouches for itself.

    Raises:
        MissingExtraError: `cryptography` is not installed.
    """
    require("cryptography", extra="cluster")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stoker")])
    now, span = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=_DAYS)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - span)
        .not_valid_after(now + span)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    fd = os.memfd_create("stoker-certificate", os.MFD_CLOEXEC)  # the key is on no disk
    os.write(fd, private + made.public_bytes(serialization.Encoding.PEM))
    return OwnCertificate(fd, made.public_bytes(serialization.Encoding.DER))
