"""Certificates and keys of a secure deployment: TLS for the SuperLink, and a key pair for every SuperNode.

They are created for one deployment on this machine. The authority's key is discarded once it has signed the SuperLink's
certificate, so that nobody can sign another one.
"""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = timedelta(days=30)
_ENCRYPTION = ("key_encipherment", "data_encipherment", "encipher_only", "decipher_only")
_UNUSED = dict.fromkeys(("content_commitment", "key_agreement", *_ENCRYPTION), False)


class ServerCertificates(NamedTuple):
    """PEM files for the options `--ssl-ca-certfile`, `--ssl-certfile` and `--ssl-keyfile` of `flower-superlink`."""

    authority: Path
    certificate: Path
    key: Path


class NodeKeys(NamedTuple):
    """Files in OpenSSH's format: `flower-supernode` reads the private key, `flwr supernode register` the public key."""

    private: Path
    public: Path


def create_server_certificates(folder: Path) -> ServerCertificates:
    """Create a certificate for localhost and 127.0.0.1, and the certificate of the authority that signed it."""
    authority_key, key = _new_key(), _new_key()
    authority = _sign("klms deployment authority", authority_key, None, authority_key)
    certificate = _sign("localhost", key, authority, authority_key)
    paths = ServerCertificates(folder / "authority.pem", folder / "superlink.pem", folder / "superlink.key")
    paths.authority.write_bytes(authority.public_bytes(Encoding.PEM))
    paths.certificate.write_bytes(certificate.public_bytes(Encoding.PEM))
    _write_secret(paths.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths


def create_node_keys(folder: Path) -> NodeKeys:
    """Create a key pair that identifies one SuperNode."""
    key, keys = _new_key(), NodeKeys(folder / "key", folder / "key.pub")
    keys.public.write_bytes(key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    _write_secret(keys.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return keys


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP384R1())


def _write_secret(path: Path, secret: bytes) -> None:
    """Write a file that other users can never read, whatever the mode of an older file with this name was."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(secret)


def _sign(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Certificate | None, signing: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Sign a certificate for `key`: an authority's without `issuer`, else a server's. OpenSSL needs all extensions."""
    ca = issuer is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(**_UNUSED, digital_signature=not ca, key_cert_sign=ca, crl_sign=ca)
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks may differ
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if not ca:
        names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return builder.sign(signing, hashes.SHA384())
