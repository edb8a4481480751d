"""Every error that klms raises on purpose, in one tree: catch `KLMSError` and you have caught them all."""

from typing import Self

from klms.printable import printable


class KLMSError(Exception):
    """Base class of every error that klms raises on purpose; its text is safe to print, whatever it quotes."""

    def __str__(self) -> str:
        return printable(super().__str__(), keep="\n\t")


class CorruptMessage(KLMSError):
    """The bytes are not a well-formed message: truncated, extended, flipped, or never a message at all."""


class UnsupportedMessage(KLMSError):
    """The bytes follow a version or use a feature of the format that this release does not know."""


class SideInformationMismatch(KLMSError):
    """The message is well-formed but was made with another `p`, key or block map: decoding it would yield noise."""


class OutsizedMessage(KLMSError):
    """The message is well-formed, but is refused, since it is far too large or claims far too much KL."""


class OutOfSync(SideInformationMismatch):
    """A client does not hold the state that a broadcast builds on, or did not arrive at the server's state."""

    reply: bytes = b""
    """Reply with which the client of an exchange asks the server for a request that needs no state."""


class InvalidArgument(KLMSError, ValueError):
    """An argument or a setting has an invalid value."""


class TrainingDiverged(KLMSError):
    """Local training produced an update that is not finite; a lower learning rate or a higher bitrate usually helps."""


class NothingTrained(KLMSError):
    """Too few clients sent a valid reply, so a round or a whole run has no result."""


class WorkerDied(KLMSError):
    """A worker process ended in the middle of its work, most often because the system ran out of memory."""


class RunFolderError(KLMSError):
    """A run folder is missing, damaged, in use, or holds another run than was expected."""


class UnreadableFile(KLMSError, OSError):
    """A path does not lead to a regular file, or the file is larger than any file of its kind may be."""


class DataError(KLMSError):
    """A data set cannot be obtained, or one of its files is damaged; the message names the file and the remedy."""


class MissingExtra(KLMSError, ImportError):
    """An optional dependency is not installed; the message names the extra that provides it."""

    @classmethod
    def told(cls, need: str, extra: str) -> Self:
        """Return the error for a missing package, with the command that installs it."""
        return cls(f"{need}: run pip install -c constraints.txt '.[{extra}]' in the clone of klms")


class DeploymentFailed(KLMSError):
    """A process of a Flower deployment ended, refused a request or did not answer; the message shows what it wrote."""
