"""Certificates for trying things on one machine: an authority of one's own, and what it signs; keys for nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 30
CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"


def authority(folder: Path, host: str = "127.0.0.1") -> None:
    """ca.crt, server.pem and server.key for a SuperLink at this address; the authority's own key is thrown away."""
    folder.mkdir(parents=True, exist_ok=True)
    root = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cpfl deploy local")])
    ca = (
        _certificate(name, name, root.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root.public_key()), critical=False)
        .sign(root, hashes.SHA256())
    )
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))]
    server = (
        _certificate(subject, name, key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        .sign(root, hashes.SHA256())
    )
    (folder / CA).write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(server.public_bytes(serialization.Encoding.PEM))
    _private(folder / KEY, _pem(key, serialization.PrivateFormat.TraditionalOpenSSL))


def node_key(path: Path) -> Path:
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` makes it; the public half's path."""
    key = ec.generate_private_key(ec.SECP384R1())
    _private(path, _pem(key, serialization.PrivateFormat.OpenSSH))
    public = path.with_name(path.name + ".pub")
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    )
    return public


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _private(path: Path, content: bytes) -> None:
    """A file that nobody else may read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
