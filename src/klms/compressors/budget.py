"""Conversion of a budget in bytes to a rate."""


def bits_within(budget_bytes: float, parameters: int, messages: int) -> float:
    """Return the bits per parameter at which `messages` messages of `parameters` each take `budget_bytes` in total.

    >>> bits_within(1_000_000, parameters=100_000, messages=10)
    8.0
    """
    return 8 * budget_bytes / max(1, parameters * messages)
