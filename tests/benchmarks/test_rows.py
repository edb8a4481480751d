from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from klms.benchmarks.rows import shown, table
from klms.cli import app
from tests.support.commands import printed_json


@dataclass(frozen=True)
class Measured:
    name: str = shown("scheme")
    exact: bool = shown("exact")
    seconds: float | None = shown("s", ".2f")
    hidden: int = 0


def test_fields_say_how_a_table_shows_them():
    heads, numbers, cells = table([Measured("a", True, 1.234), Measured("b", False, None)])
    assert heads == ["scheme", "exact", "s"]
    assert numbers == ["s"]
    assert cells == [["a", "yes", "1.23"], ["b", "no", ""]]


@pytest.mark.parametrize(
    ("bench", "rows"),
    [(["server", "--scheme", "eden", "--messages", "2"], 1), (["downlink", "--clients", "2"], 12)],
    ids=["server", "downlink"],
)
def test_a_bench_prints_a_table_or_json(bench, rows):
    shown = CliRunner().invoke(app, ["bench", *bench, "--d", "2000"])
    assert shown.exit_code == 0, shown.output
    assert "bits/parameter" in shown.output
    written = printed_json("bench", *bench, "--d", "2000")
    assert len(written["rows"]) == rows
    assert {"klms", "numpy", "machine", "cores"} <= written.keys()
