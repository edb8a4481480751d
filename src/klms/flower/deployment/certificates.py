"""Keys of a secure deployment on this machine: TLS for the SuperLink, and a key pair for every SuperNode."""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

VALID = timedelta(days=30)


class KeyPair(NamedTuple):
    """A private key and its public counterpart: the SuperLink's certificate, or the public key of a SuperNode."""

    private: Path
    public: Path


def create_server_certificate(folder: Path) -> KeyPair:
    """Create a self-signed certificate for localhost and 127.0.0.1, in PEM files."""
    key, pair = ec.generate_private_key(ec.SECP384R1()), KeyPair(folder / "superlink.key", folder / "superlink.pem")
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks may differ
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .sign(key, hashes.SHA384())
    )
    pair.public.write_bytes(certificate.public_bytes(Encoding.PEM))
    _write_secret(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return pair


def create_node_keys(folder: Path) -> KeyPair:
    """Create a key pair that identifies one SuperNode, in OpenSSH's format."""
    key, pair = ec.generate_private_key(ec.SECP384R1()), KeyPair(folder / "key", folder / "key.pub")
    pair.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    _write_secret(pair.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return pair


def _write_secret(path: Path, secret: bytes) -> None:
    """Write a file that other users can never read, whatever the mode of an older file with this name was."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)
