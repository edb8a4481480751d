"""Runs compared with committed results, by `klms experiment run` and `klms experiment compare`."""

import json

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.errors import RunFolderError
from klms.experiments import catalogue, grid, results_file
from klms.experiments.compare import compare
from tests.experiments.tiny import experiment


@pytest.fixture(scope="module")
def runs(mnist, tmp_path_factory):
    """Two complete runs, and one that has not been started."""
    folder = tmp_path_factory.mktemp("runs")
    cells = experiment(mnist).cells("small", folder, only=["fedavg"], seeds=2)
    grid.run_cells(cells, workers=1, report=lambda cell: None)
    return folder


@pytest.fixture
def tiny(mnist):
    return experiment(mnist)


@pytest.fixture
def committed(tiny, runs):
    return results_file.collect(tiny, tiny.cells("small", runs))


def test_a_repeated_run_is_equal_to_every_digit(tiny, runs, committed):
    found = compare(tiny, "small", runs, committed)
    assert [(row.row, row.data, row.seeds, row.equal) for row in found.rows] == [("fedavg", "mnist", 2, True)]
    assert found.remarks == []
    assert found.verdict() == "equal to every digit (rows: 1, runs: 2); the versions of torch and numpy are the same"


def test_a_number_that_differs_makes_its_row_differ(tiny, runs, committed, monkeypatch, instructions):
    monkeypatch.setattr(grid, "INSTRUCTIONS", instructions)
    committed["mnist"]["fedavg"]["seeds"]["1"]["uplink_bytes"] += 1
    found = compare(tiny, "small", runs, committed)
    assert not found.equal
    assert found.verdict() == (
        "rows that differ (1 of 1): fedavg (mnist); the versions of torch and numpy are the same, but processors may "
        "differ, or the values of ATEN_CPU_CAPABILITY and ONEDNN_MAX_CPU_ISA"
    )
    committed["mnist"]["fedavg"]["seeds"]["0"]["versions"] |= {"torch": "2.0"}
    verdict = compare(tiny, "small", runs, committed).verdict()
    assert verdict.startswith("rows that differ (1 of 1): fedavg (mnist); versions differ: torch ")
    assert verdict.endswith(" instead of 2.0")


def test_numbers_that_only_one_side_has_are_not_compared(tiny, runs, committed):
    for run in committed["mnist"]["fedavg"]["seeds"].values():
        del run["times_smaller_total"]
    del committed["mnist"]["fedavg"]["seeds"]["1"]
    found = compare(tiny, "small", runs, committed)
    assert [(row.seeds, row.equal) for row in found.rows] == [(1, True)]


def test_other_settings_cannot_be_compared(tiny, runs, committed):
    committed["mnist"]["fedavg"]["config"]["lr"] = 0.7
    found = compare(tiny, "small", runs, committed)
    assert found.rows == []
    assert found.remarks == ["fedavg, mnist: the committed row has other lr"]
    assert compare(tiny, "small", runs, {}).remarks == ["fedavg, mnist: not in the committed results"]
    tiny.rows["fedavg"] = {"lr": 0.7}
    with pytest.raises(RunFolderError, match="other settings"):
        compare(tiny, "small", runs, committed)


def test_runs_that_are_not_complete_are_not_compared(tiny, tmp_path, committed):
    short = tiny.cells("small", tmp_path, only=["fedavg"], seeds=1, rounds=1)
    grid.run_cells(short, workers=1, report=lambda cell: None)
    found = compare(tiny, "small", tmp_path, committed)
    assert (found.rows, found.remarks) == ([], [])


def test_the_commands(tiny, runs, tmp_path, monkeypatch):
    """The first run writes the results, the second one keeps them; only the row that is asked for runs."""
    monkeypatch.setattr(catalogue, "load", lambda name: tiny)
    places = ["tiny", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    file = tmp_path / "results" / "tiny-small.json"

    def klms(command, *options):
        shown = CliRunner().invoke(app, ["experiment", command, *places, *options])
        return shown.exit_code, shown.output

    code, output = klms("run", "--only", "fedavg", "--seeds", "1", "--workers", "1")
    assert code == 0, output
    assert f"{file}: added fedavg, mnist, seed 0" in output
    shown = [text for text in output.splitlines() if "round" in text and text.endswith("left")]
    assert [text.partition(",")[0] for text in shown] == ["fedavg"] * 3
    assert "fedavg, mnist, seed 0: round 3/3, accuracy" in shown[-1]
    assert klms("compare")[0] == 0
    code, output = klms("run", "--only", "fedavg", "--seeds", "1")
    assert f"{file}: kept fedavg, mnist, seed 0, with equal settings" in output

    changed = json.loads(file.read_text())
    changed["data"]["mnist"]["fedavg"]["seeds"]["0"]["accuracy"] += 0.25
    file.write_text(json.dumps(changed))
    code, output = klms("compare")
    assert code == 1
    assert "-0.250000" in output
    assert "rows that differ (1 of 1): fedavg (mnist)" in output
    assert "replaced fedavg, mnist, seed 0" in klms("run", "--only", "fedavg", "--seeds", "1", "--replace")[1]
    assert klms("compare")[0] == 0

    file.unlink()
    code, output = klms("compare")
    assert code == 1
    assert "run this in the repository" in output


def test_nothing_to_compare_is_an_error(tmp_path):
    shown = CliRunner().invoke(app, ["experiment", "compare", "table1", "--runs", str(tmp_path)])
    assert shown.exit_code == 1
    assert "no finished run of table1 (profile small)" in shown.output
