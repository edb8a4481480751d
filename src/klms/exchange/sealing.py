"""Payloads that only the server can read, even if others know the seed and the model: `client_secrets`.

A server draws an X25519 key pair when it starts, and its public key goes out with every request. For every payload a
client draws a pair of its own; HKDF-SHA256 turns the secret that the two pairs agree on into a key for
ChaCha20-Poly1305, which encrypts this one payload:

0  public key of the client (32 bytes)   32  ciphertext, as long as the payload   end-16  authentication tag

No keys of clients are kept between rounds, so restarts on either side need no special handling. The frame inside says
which request and round the payload belongs to. A client takes the public key on trust: whoever can replace it in
transit can read what the client sends, so the connection still needs TLS.
"""

from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from klms.errors import CorruptMessage, InvalidArgument
from klms.frame import MAGIC

_KEY_BYTES = 32
_TAG_BYTES = 16
OVERHEAD = _KEY_BYTES + _TAG_BYTES
_NONCE = bytes(12)  # no two payloads share a key


def seal(payload: bytes, server: bytes) -> bytes:
    """Encrypt a payload for the holder of the private key that belongs to the public key `server`."""
    own, public = _drawn_pair()
    try:
        secret = own.exchange(X25519PublicKey.from_public_bytes(server))
    except ValueError as error:
        raise InvalidArgument(f"the server's public key cannot be used: {error}") from error
    return public + _cipher(secret, server, public).encrypt(_NONCE, payload, None)


@dataclass(frozen=True)
class ServerKey:
    """The key pair that a server draws when it starts."""

    _private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate, repr=False)

    @property
    def public(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    def open(self, sealed: bytes) -> bytes:
        """Undo `seal`; raise `CorruptMessage` if the bytes were not made for this key, or were changed."""
        if len(sealed) < OVERHEAD:
            raise CorruptMessage(f"{len(sealed)} bytes are too few for a sealed payload")
        client = sealed[:_KEY_BYTES]
        try:
            secret = self._private.exchange(X25519PublicKey.from_public_bytes(client))
            return _cipher(secret, self.public, client).decrypt(_NONCE, sealed[_KEY_BYTES:], None)
        except (InvalidTag, ValueError) as error:
            raise CorruptMessage("the payload is not sealed for this server, or was changed in transit") from error


def _drawn_pair() -> tuple[X25519PrivateKey, bytes]:
    """Return a private key, and a public key that does not look like the beginning of a frame."""
    own = X25519PrivateKey.generate()
    public = own.public_key().public_bytes_raw()
    return _drawn_pair() if public.startswith(MAGIC) else (own, public)


def _cipher(secret: bytes, server: bytes, client: bytes) -> ChaCha20Poly1305:
    derived = HKDF(SHA256(), _KEY_BYTES, salt=None, info=b"klms client secrets 1" + server + client).derive(secret)
    return ChaCha20Poly1305(derived)
