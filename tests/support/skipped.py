"""What a test run did not run, in words for whoever started it."""

from collections import Counter
from collections.abc import Iterable

import pytest


def summary_of_skipped(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> list[str]:
    """Return one line for every reason for which tests were skipped: how many, why, and how to run them.

    The reason itself says what to do. That a package is missing, pytest says: here is where to get it.
    """
    reasons: Counter[str] = Counter()
    for report in reports:
        assert isinstance(report.longrepr, tuple)
        reasons[report.longrepr[2].removeprefix("Skipped: ")] += 1
    return [f"{count} skipped: {reason}{_remedy(reason)}" for reason, count in sorted(reasons.items())]


def _remedy(reason: str) -> str:
    return "; `make test` installs it" if reason.startswith("could not import") else ""
