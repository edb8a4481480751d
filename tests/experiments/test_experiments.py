"""Named experiments: their grids, how these are run, and what is left when that is killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.engine.ledger import LedgerRecord
from klms.errors import InvalidArgument, KLMSError, RunFolderError
from klms.experiments import catalogue, grid, pictures, results_file, toy
from klms.runs.run_folder import RunFolder
from tests.experiments.tiny import experiment
from tests.report.folders import line, write_run
from tests.runs.small_run import result
from tests.support.waiting import wait_until


@pytest.mark.parametrize("name", catalogue.TRAINED)
def test_every_grid_resolves(name):
    experiment = catalogue.load(name)
    assert {"small", "paper"} <= experiment.profiles.keys()
    for profile in experiment.profiles:
        cells = experiment.cells(profile)
        assert len({cell.folder.path for cell in cells}) == len(cells)
        assert {cell.row for cell in cells} == set(experiment.profiles[profile].get("rows", experiment.rows))


def test_table_1_has_the_papers_rows_and_settings():
    cells = catalogue.load("table1").cells("paper", seeds=1)
    # The KLMS methods also without memory, and literal; and three rows that the paper does not have: fedavg and
    # trellis, at a rate and at a quality.
    assert len({cell.row for cell in cells}) == 15 + 6 + 3
    assert {cell.data for cell in cells} == {"cifar10", "cifar100", "mnist", "emnist"}
    by = {(cell.row, cell.data): cell.config for cell in cells}
    assert by["fedpm-klms", "cifar10"].model == "conv6"
    assert by["fedpm-klms", "cifar10"].rounds == 400
    assert by["fedpm-klms", "mnist"].epochs == 3
    assert by["fedpm-klms", "mnist"].batch == 128
    fewer = by["fedpm-klms, fewer bits", "mnist"]
    assert fewer.target == pytest.approx(1.8 * by["fedpm-klms, without memory", "mnist"].target)
    hard = catalogue.load("table2").cells("paper", only=["eden"], seeds=1)
    assert [(cell.config.clients, cell.config.per_round, cell.config.c_max) for cell in hard] == [
        (100, 20, 4),
        (100, 20, 40),
    ]


def test_rows_are_chosen_by_their_exact_names_or_by_method():
    table1 = catalogue.load("table1")
    assert table1.rows_of("small", only=["fedpm-klms"]) == ["fedpm-klms"]
    assert table1.rows_of("small", only=["fedpm-klms, literal", "eden"]) == ["eden", "fedpm-klms, literal"]
    variants = ["fedpm-klms, without memory", "fedpm-klms, fewer bits", "fedpm-klms", "fedpm-klms, literal"]
    assert table1.rows_of("small", methods=["fedpm-klms"]) == variants
    assert table1.rows_of("small", only=["eden"], methods=["fedpm-klms"]) == ["eden", *variants]
    assert {cell.row for cell in table1.cells("small", only=["fedpm-klms"])} == {"fedpm-klms"}


@pytest.mark.parametrize(
    ("name", "profile", "wanted", "hint"),
    [
        ("table1", "small", {"only": ["fedpm-klms, litteral"]}, "did you mean 'fedpm-klms, literal'"),
        ("table1", "small", {"methods": ["fedpn"]}, "did you mean 'fedpm'"),
        ("table1", "cpu", {"only": ["terngrad"]}, "no row of table1 (profile cpu) 'terngrad'"),
        ("accuracy-vs-bitrate", "small", {"only": ["fedpm-klms"]}, "--method fedpm-klms takes all its rows"),
    ],
)
def test_an_unknown_row_suggests_another(name, profile, wanted, hint):
    with pytest.raises(InvalidArgument, match=re.escape(hint)):
        catalogue.load(name).cells(profile, **wanted)


def test_an_unknown_experiment_suggests_another():
    with pytest.raises(InvalidArgument, match="table1"):
        catalogue.load("tabel1")


def test_a_folder_tells_its_row():
    for name in catalogue.TRAINED:
        experiment = catalogue.load(name)
        for cell in experiment.cells("small", seeds=2) + experiment.cells("paper", "elsewhere", seeds=1, rounds=3):
            assert catalogue.row_in(cell.folder.path, cell.config.method) == cell.row
            assert catalogue.row_in(cell.folder.path, "another") is None
    assert catalogue.row_in(Path("runs/fedpm-0"), "fedpm") is None


def test_a_row_has_one_method_in_all_experiments():
    """The report shows a row by its name alone."""
    methods: dict[str, set[str]] = {}
    for name in catalogue.TRAINED:
        experiment = catalogue.load(name)
        for row in experiment.rows:
            methods.setdefault(row, set()).add(experiment.method(row))
    assert {row: some for row, some in methods.items() if len(some) > 1} == {}


def test_complete_runs_are_kept_and_interrupted_ones_are_resumed(mnist, tmp_path):
    tiny = experiment(mnist)
    cells = tiny.cells("small", tmp_path, seeds=2)
    assert [(cell.row, cell.seed) for cell in cells] == [
        ("fedpm-klms", 0),
        ("fedavg", 0),
        ("one", 0),
        ("fedpm-klms", 1),
        ("fedavg", 1),
    ]
    done: list[str] = []
    rounds: list[str] = []

    def progress(cell, records, _seconds_left) -> None:
        rounds.append(f"{cell.row} {cell.seed}, {records[-1].round}")

    grid.run_cells(cells[:2], workers=1, report=lambda cell: done.append(cell.row), progress=progress)
    assert done == ["fedpm-klms", "fedavg"]
    assert rounds == [f"{row} 0, {n}" for row in done for n in (1, 2, 3)]
    rounds.clear()
    grid.run_cells(cells, workers=2, report=lambda cell: done.append(f"{cell.row} {cell.seed}"), progress=progress)
    assert sorted(done[2:]) == ["fedavg 1", "fedpm-klms 1", "one 0"]
    assert sorted(rounds) == [f"{run}, {n}" for run in sorted(done[2:]) for n in (1, 2, 3)]
    whole = results_file.collect(tiny, cells)
    assert set(whole["mnist"]["fedavg"]["seeds"]) == {"0", "1"}
    assert len(whole["mnist"]["fedavg"]["series"]["bits_per_parameter"]) == 3
    assert json.loads(json.dumps(whole)) == whole

    # A run that lost its checkpoint is not complete. Once its folder is gone, as the error says, it runs again.
    (cells[0].folder.path / "checkpoint.klms").unlink()
    assert [cell.rounds() for cell in cells] == [0, 3, 3, 3, 3]
    with pytest.raises(KLMSError, match="delete the folder and run it again"):
        grid.run_cells(cells, workers=1, report=lambda cell: None)
    shutil.rmtree(cells[0].folder.path)
    grid.run_cells(cells, workers=1, report=lambda cell: None)
    assert results_file.collect(tiny, cells) == whole

    # Lost lines and a damaged checkpoint cannot be repaired: the error says so.
    metrics = cells[1].folder.path / "metrics.jsonl"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(KLMSError, match=r"fedavg, mnist, seed 0.*lost lines"):
        grid.run_cells(cells, workers=1, report=lambda cell: None)
    (cells[2].folder.path / "checkpoint.klms").write_bytes(b"PK")
    with pytest.raises(RunFolderError, match="damaged"):
        grid.run_cells(cells[2:], workers=1, report=lambda cell: None)


def test_a_folder_of_other_settings_is_neither_resumed_nor_committed(mnist, tmp_path):
    cells = experiment(mnist).cells("small", tmp_path, only=["fedavg"], seeds=1)
    grid.run_cells(cells, workers=1, report=lambda cell: None)
    other = experiment(mnist)
    other.rows["fedavg"] = {"lr": 0.05}
    cells = other.cells("small", tmp_path, only=["fedavg"], seeds=1)
    with pytest.raises(RunFolderError, match="other settings"):
        grid.run_cells(cells, workers=1, report=lambda cell: None)
    with pytest.raises(RunFolderError, match="other settings"):
        results_file.collect(other, cells)


@pytest.mark.parametrize(
    ("known", "before", "during"),
    [(True, None, "AVX2"), (True, "AVX512_CORE", "AVX512_CORE"), (False, None, None)],
)
def test_torch_uses_the_instructions_that_all_processors_have(
    tmp_path, monkeypatch, instructions, known, before, during
):
    """Otherwise no number of a run would be the same on another machine."""
    found = []
    monkeypatch.setattr(grid, "INSTRUCTIONS", instructions)
    for name in instructions:
        monkeypatch.delenv(name, raising=False)
    if before is not None:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", before)
    monkeypatch.setattr(grid, "_has_avx2", lambda: known)
    monkeypatch.setattr(grid, "_run_cell", lambda *_, **__: found.append(dict(os.environ)))
    cells = experiment(tmp_path).cells("small", tmp_path, only=["fedavg"], seeds=1)
    grid.run_cells(cells, workers=1, report=lambda cell: None)
    (environment,) = found
    assert environment.get("ONEDNN_MAX_CPU_ISA") == during
    assert environment.get("ATEN_CPU_CAPABILITY") == ("avx2" if known and before is None else None)
    assert os.environ.get("ONEDNN_MAX_CPU_ISA") == before
    assert "ATEN_CPU_CAPABILITY" not in os.environ


def test_runs_on_packaged_data_do_not_count_as_runs_on_the_users_own(mnist, tmp_path):
    kl_by_layer = catalogue.load("kl-by-layer")
    (cell,) = kl_by_layer.cells("small", tmp_path)
    write_run(cell.folder.path, **cell.config.model_dump(exclude_none=True, mode="json"))
    assert cell.rounds() == 0  # it has no checkpoint
    (own,) = kl_by_layer.cells("small", tmp_path, data_dir=mnist)
    assert own.config.data_dir == mnist
    with pytest.raises(RunFolderError, match="packaged data"):
        own.rounds()


def test_data_that_cannot_be_loaded_is_noticed_before_any_run(mnist, tmp_path, monkeypatch):
    monkeypatch.setenv("KLMS_DATA", str(tmp_path / "stored"))
    cells = experiment(mnist).cells("small", tmp_path / "runs", only=["fedavg"], seeds=1)
    elsewhere = catalogue.load("table1").cells("cpu", tmp_path / "runs", data=["emnist"], only=["fedavg"])
    with pytest.raises(KLMSError, match="No package holds emnist"):
        grid.run_cells([*cells, *elsewhere], workers=1, report=lambda cell: None)
    assert not (tmp_path / "runs").exists()


def accept_interrupts() -> None:
    """Undo that a background job of a shell starts, and starts its children, with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def alive(process: str) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


HELD = """
import sys, time
from pathlib import Path
from klms.experiments import grid
from klms.runs.run_folder import RunFolder
from tests.experiments.tiny import experiment

append = RunFolder.append

def append_and_wait(self, record, state):
    append(self, record, state)
    time.sleep(3600)

RunFolder.append = append_and_wait  # workers import this file, too
grid.INSTRUCTIONS = {}  # as in the tests, see conftest.py

if __name__ == "__main__":
    cells = experiment(Path(sys.argv[1])).cells("small", sys.argv[2], seeds=2)
    grid.run_cells(cells, workers=2, report=lambda cell: None)
"""


def start_and_wait_for_a_round(mnist: Path, runs: Path) -> subprocess.Popen[bytes]:
    """Start the experiment in a process of its own; each of its workers waits for its end once it has done a round."""

    def rounds() -> int:
        return sum(len(list(RunFolder(path.parent).records())) for path in runs.rglob("checkpoint.klms"))

    before = rounds()
    script = runs.parent / "held.py"
    script.write_text(HELD)
    command = [sys.executable, str(script), str(mnist), str(runs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(command, env=environment, start_new_session=True, preexec_fn=accept_interrupts)
    wait_until(lambda: rounds() > before or process.poll() is not None)
    return process


def test_an_experiment_that_is_stopped_and_killed_yields_the_same_results(mnist, tmp_path):
    """Its workers end with it, however it ends: otherwise they would write into the ledgers of the next start.

    First Ctrl-C, then a start that resumes and whose parent alone is killed, then a start that completes the runs.
    """
    for stop in (signal.SIGINT, signal.SIGKILL):
        process = start_and_wait_for_a_round(mnist, tmp_path / "killed")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        assert children
        process.send_signal(stop)
        process.wait()
        wait_until(lambda children=children: not any(alive(child) for child in children))
    killed, whole = (experiment(mnist).cells("small", tmp_path / name, seeds=2) for name in ("killed", "whole"))
    # A round whose checkpoint was not written yet is repeated.
    assert 1 <= sum(cell.rounds() for cell in killed) <= 4
    for cells in (killed, whole):
        grid.run_cells(cells, workers=1, report=lambda cell: None)
    for one, other in zip(killed, whole, strict=True):
        assert result(one.folder.path) == result(other.folder.path)


def test_the_toy_model_behaves_as_the_paper_says():
    overhead = toy.run("toy-overhead")["curves"]
    assert list(overhead) == ["0", "2", "4", "6"]
    for curve in overhead.values():
        assert curve["mean"][0] > 1.5 * curve["mean"][-1]
        assert np.all(np.diff(curve["deviation"]) < 0.01)
        assert curve["deviation"][-1] < 0.1 * curve["deviation"][0]
    last = [curve["mean"][-1] for curve in overhead.values()]
    assert last[0] > 3 * last[1] > 6 * last[2] > 6 * last[3]
    spread = list(toy.run("toy-heterogeneity")["curves"].values())
    first = [curve["mean"][0] for curve in spread]
    assert first[-1] > first[0] + 0.01  # the standard error of each is 0.002
    assert spread[-1]["mean"][-1] < 0.05 < 0.8 < first[-1]


def test_a_part_of_an_experiment_is_not_committed_as_the_whole(tmp_path, mnist):
    """Runs that end early, or that the profile does not have, are written beside the runs."""
    table1 = catalogue.load("table1")
    assert table1.has(table1.cells("small", only=["eden"]), "small")
    assert not table1.has(table1.cells("small", only=["eden"], data=["fashion-mnist"]), "small")
    assert not table1.has(table1.cells("small", only=["fedpm"], seeds=4), "small")
    arguments = ["experiment", "run", "kl-by-layer", "--data-dir", str(mnist), "--rounds", "1", "--workers", "1"]
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    shown = CliRunner().invoke(app, [*arguments, *places])
    assert shown.exit_code == 0, shown.output
    assert not (tmp_path / "results").exists()
    assert [path.parent.parent.name for path in (tmp_path / "runs").rglob("results.json")] == ["kl-by-layer"]


def test_the_commands(tmp_path, mnist):
    shown = CliRunner().invoke(app, ["experiment", "list"])
    assert shown.exit_code == 0
    for name in catalogue.NAMES:
        assert name in shown.output
    made = CliRunner().invoke(app, ["experiment", "run", "toy-overhead", "--results", str(tmp_path)])
    assert made.exit_code == 0, made.output
    committed = json.loads((Path(__file__).parents[2] / "results" / "toy-overhead.json").read_text())
    assert json.loads((tmp_path / "toy-overhead.json").read_text()) == committed
    stands = CliRunner().invoke(app, ["experiment", "status", "kl-by-layer", "--runs", str(tmp_path)])
    assert "0 of 1 complete" in stands.output
    rows = ["--only", "fedpm-klms, fewer bits", "--only", "drive", "--method", "qsgd-klms"]
    some = CliRunner().invoke(app, ["experiment", "status", "table1", *rows, "--seeds", "1"])
    assert "of 6 complete" in some.output
    for command in ("status", "compare"):
        for name in ("panel", "diloco"):
            shown = CliRunner().invoke(app, ["experiment", command, name])
            assert shown.exit_code == 1
            assert f"the runs of {name} have no folders" in " ".join(shown.output.split())
            assert f"klms experiment run {name}" in " ".join(shown.output.split())
    wrong = CliRunner().invoke(app, ["experiment", "status", "table1", "--data", "zzz"])
    assert wrong.exit_code == 1
    assert "there is no data set 'zzz'" in wrong.output
    wrong = CliRunner().invoke(app, ["experiment", "run", "kl-by-layer", "--data-dir", "a\udcff"])
    assert r"the path a\udcff is not UTF-8" in wrong.output
    wrong = CliRunner().invoke(app, ["experiment", "run", "tabel1"])
    assert wrong.exit_code == 1
    assert "table1" in wrong.output


def test_the_picture_of_the_demo_shows_bytes_both_ways(monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn = []
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: drawn.append(self))
    runs = {}
    for method, down in (("trellis", 9_000_000), ("fedpm-klms", 1_000_000)):
        lines = [line(n, n / 10, bytes_up=1_000_000, bytes_down=down) for n in (1, 2)]
        runs[method] = [LedgerRecord.model_validate(one) for one in [*lines, line(3)]]  # round 3 is not evaluated
    pictures.demo(runs, "demo.png")
    (axes,) = drawn[0].axes
    assert {one.get_label(): list(one.get_xdata()) for one in axes.lines} == {
        "trellis": [10.0, 20.0],
        "fedpm-klms": [2.0, 4.0],
    }
    assert "up and down" in axes.get_xlabel()
