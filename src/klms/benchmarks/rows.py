"""Rows of a bench: a dataclass holds one measurement, and its fields say how a table shows them."""

from collections.abc import Sequence
from dataclasses import field, fields
from typing import Any


def shown(head: str, form: str = "") -> Any:
    """Declare a field that tables show under `head`, in the format `form` if it is a number."""
    return field(metadata={"head": head, "form": form})


def table(rows: Sequence[Any]) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the column heads of a table, the heads of its numeric columns, and its cells; None is an empty cell."""
    columns = {one.metadata["head"]: one for one in fields(rows[0]) if one.metadata}
    numbers = [head for head, one in columns.items() if one.metadata["form"]]
    cells = [[_cell(getattr(row, one.name), one.metadata["form"]) for one in columns.values()] for row in rows]
    return list(columns), numbers, cells


def _cell(value: object, form: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:{form}}"
