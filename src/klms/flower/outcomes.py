"""What can become of a client that was asked to train, in the words of metrics and ledgers."""

from klms.errors import KLMSError, SideInformationMismatch
from klms.flower.frame import WrongRound

CAUSES = ("error", "missing", "corrupt", "stale", "mismatch")
"""Why a reply does not count: the client raised an error, did not answer, or sent one of three kinds of bad replies."""

_NO_ANSWER = (3, 4, 5)  # Flower's error codes: the message or its reply expired, or the node is gone


def cause_of(error: KLMSError) -> str:
    """Return the cause under which a bad reply is counted."""
    if isinstance(error, WrongRound):
        return "stale"
    return "mismatch" if isinstance(error, SideInformationMismatch) else "corrupt"


def cause_of_failure(code: int) -> str:
    """Return the cause for an error reply, made by the client's app or by Flower when no answer came."""
    return "missing" if code in _NO_ANSWER else "error"
