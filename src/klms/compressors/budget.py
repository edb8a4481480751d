"""A budget in bytes as a rate."""


def bits_within(budget_bytes: float, parameters: int, messages: int) -> float:
    """Return the bits per parameter at which so many messages of so many parameters take `budget_bytes` in all.

    >>> bits_within(1_000_000, parameters=100_000, messages=10)
    8.0
    """
    return 8 * budget_bytes / max(1, parameters * messages)
