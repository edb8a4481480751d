"""When a run ends: after its last round, or earlier for a reason that its settings name."""

from collections.abc import Sequence

from klms.engine.ledger import LedgerRecord
from klms.methods.entry import ClientSettings


def complete(records: Sequence[LedgerRecord], settings: ClientSettings) -> bool:
    """Return whether a run with these records is complete."""
    reached = [record.accuracy for record in records if record.accuracy is not None and not record.undone]
    enough = settings.stop_at > 0 and max(reached, default=0.0) >= settings.stop_at
    return enough or len(records) >= settings.rounds


def rounds_left(records: Sequence[LedgerRecord], settings: ClientSettings) -> int:
    """Return how many rounds a run may still take; 0 if it is complete."""
    return 0 if complete(records, settings) else settings.rounds - len(records)
