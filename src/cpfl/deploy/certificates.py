"""A certificate and node keys for a local fleet."""

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

DAYS = 30
CA, CERTIFICATE, KEY = "ca.crt", "server.pem", "server.key"


def authority(folder: Path, host: str = "127.0.0.1") -> None:
    """ca.crt, server.pem and server.key for a SuperLink at this address: one certificate, which signs itself."""
    folder.mkdir(parents=True, exist_ok=True)
    key, now = ec.generate_private_key(ec.SECP384R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cpfl deploy local")])
    hosts = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(host))])
    builder = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - datetime.timedelta(hours=1),
        not_valid_after=now + datetime.timedelta(days=DAYS),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    signed = builder.add_extension(hosts, critical=False).sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    for file in (CA, CERTIFICATE):
        (folder / file).write_bytes(signed)
    _write_key(folder / KEY, key, PrivateFormat.TraditionalOpenSSL)


def node_key(path: Path) -> Path:
    """A node's key pair, as `ssh-keygen -t ecdsa -b 384` makes it; the path of the public key."""
    key = ec.generate_private_key(ec.SECP384R1())
    _write_key(path, key, PrivateFormat.OpenSSH)
    public = path.with_name(path.name + ".pub")
    public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    return public


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, style: PrivateFormat) -> None:
    """A file that only this user may read, from its first byte on."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, style, NoEncryption()))
