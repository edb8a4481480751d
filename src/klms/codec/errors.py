"""The error tree. Everything that klms raises about a message derives from `KLMSError`."""


class KLMSError(Exception):
    """Base class of every error about a message."""


class CorruptMessage(KLMSError):
    """The bytes are not a well-formed message: truncated, extended, flipped, or never a message at all."""


class UnsupportedMessage(KLMSError):
    """The bytes follow a version or use a feature of the format that this release does not know."""


class SideInformationMismatch(KLMSError):
    """Well-formed, but made with another `p`, key, or block map: decoding it would yield noise."""
