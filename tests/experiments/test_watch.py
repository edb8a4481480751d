"""Progress of runs, read from their ledgers."""

import re

import pytest

from klms.cli.live import LiveGrid
from klms.experiments.watch import Watch
from tests.experiments.tiny import experiment
from tests.report.folders import add_lines, line, write_run


@pytest.fixture
def cells(tmp_path):
    return experiment(tmp_path).cells("small", tmp_path, seeds=1)


def grow(cell, *numbers, seconds=10.0):
    """Add rounds to the ledger of a run, as the process that trains it does."""
    folder = cell.folder.path
    if not folder.exists():
        write_run(folder, cell.config.method, rounds=3, lines=[line(1, seconds={"total": 60.0})])
    add_lines(folder, *(line(n, 0.9, seconds={"total": seconds}) for n in numbers))


def test_every_round_is_reported_once_with_the_time_left(cells):
    told: list[tuple[str, int, float]] = []

    def tell(cell, records, seconds_left) -> None:
        told.append((cell.row, records[-1].round, seconds_left))

    grow(cells[0], 2)
    watch = Watch(cells, workers=2, progress=tell)
    watch.look()
    assert told == []  # these rounds were there before
    grow(cells[1])
    watch.look()
    # One round of 10 s is left of the first run and two of 60 s, so far, of the second; the third run has three rounds
    # of (10 + 60) / 2 s. Two at a time take half of the sum, but not less than the longest.
    assert told == [("fedavg", 1, 120.0)]
    grow(cells[1], 2, 3, seconds=20.0)
    grow(cells[0], 3)
    watch.look()
    watch.look()
    assert told[1:] == [("fedpm-klms", 3, 45.0), ("fedavg", 2, 45.0), ("fedavg", 3, 45.0)]  # three rounds of 15 s


def test_a_ledger_that_a_resumed_run_has_cut_is_followed(cells):
    rounds: list[int] = []
    grow(cells[0], 2)
    watch = Watch(cells, workers=1, progress=lambda _, records, __: rounds.append(records[-1].round))
    ledger = cells[0].folder.path / "metrics.jsonl"
    ledger.write_text(ledger.read_text().splitlines(keepends=True)[0])
    watch.look()
    grow(cells[0], 2)
    watch.look()
    assert rounds == [2]


def test_a_damaged_folder_does_not_disturb_the_others(cells):
    rows: list[str] = []
    watch = Watch(cells, workers=1, progress=lambda cell, *_: rows.append(cell.row))
    grow(cells[0])
    grow(cells[1])
    (cells[0].folder.path / "config.toml").unlink()
    watch.look()
    assert rows == ["fedavg"]


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "piped"])
def test_what_is_shown_of_a_round(cells, monkeypatch, capsys, terminal):
    monkeypatch.setenv("TTY_COMPATIBLE" if terminal else "NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    grow(cells[0])
    with LiveGrid("tiny", len(cells), 0) as live:
        watch = Watch(cells, workers=1, progress=live.round_of)
        grow(cells[0], 2)
        watch.look()
        grow(cells[0], 3)
        watch.look()
        live.end(cells[0])
        live.say("complete: it")
    out, shown = capsys.readouterr()
    round_2 = "fedpm-klms, mnist, seed 0: round 2/3, accuracy 0.9000, MB: 0.002 up, 0.008 down, 0.010 total"
    assert round_2 in shown
    if terminal:
        assert "tiny: 1 of 3 runs complete" in shown
        assert re.search(r"(\n|\x1b\[2K)complete: it\n", shown)  # on a line of its own, not behind a bar
        return
    assert out == "complete: it\n"
    lines = [text for text in shown.splitlines() if text.endswith("left")]
    assert [text.rpartition("; ")[2] for text in lines] == ["about 70 s left", "about 60 s left"]
