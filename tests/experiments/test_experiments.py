"""Named experiments: their grids, how these are run, and what is left when that is killed."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.errors import InvalidArgument, KLMSError, RunFolderError
from klms.experiments import catalogue, demo, grid, toy
from klms.runs.run_folder import RunFolder
from tests.report.folders import line, write_run
from tests.runs.small_run import result
from tests.support.small_data import write_mnist
from tests.support.waiting import wait_until


@pytest.mark.parametrize("profile", ["small", "paper"])
@pytest.mark.parametrize("name", [name for name in catalogue.names() if name not in toy.TOYS])
def test_every_grid_resolves(name, profile):
    experiment = catalogue.load(name)
    cells = experiment.cells(profile)
    assert len({cell.folder(Path("runs")) for cell in cells}) == len(cells)
    assert {cell.row for cell in cells} == set(experiment.rows)


def test_table_1_has_the_papers_rows_and_settings():
    cells = catalogue.load("table1").cells("paper", seeds=1)
    # The KLMS methods also without memory, and literal; and two methods that the paper does not have: fedavg, klms.
    assert len({cell.row for cell in cells}) == 15 + 6 + 2
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


def test_rows_can_be_chosen_by_name_and_by_method():
    experiment = catalogue.load("table1")
    assert {cell.row for cell in experiment.cells("small", only=["fedpm-klms"])} == {
        "fedpm-klms",
        "fedpm-klms, fewer bits",
        "fedpm-klms, without memory",
        "fedpm-klms, literal",
    }
    with pytest.raises(InvalidArgument, match="fedpm"):
        experiment.cells("small", only=["fedpn"])
    with pytest.raises(InvalidArgument, match="table1"):
        catalogue.load("tabel1")


SMALL = {"images": 0, "clients": 3, "width": 0.2, "rounds": 3, "batch": 16, "evaluate_every": 3, "bits": 5}


def experiment(folder: Path) -> catalogue.Experiment:
    shape = {"data": ["mnist"], "settings": SMALL | {"data_dir": str(folder)}}
    rows = {"fedpm-klms": {}, "fedavg": {}, "one": {"method": "signsgd"}}
    profiles = {"small": shape | {"one_seed": ["one"]}}
    return catalogue.Experiment("tiny", "", "", rows, profiles, series=("bits_per_parameter",))


@pytest.fixture(scope="module")
def mnist(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def test_complete_runs_are_kept_and_interrupted_ones_are_resumed(mnist, tmp_path):
    tiny = experiment(mnist)
    cells = tiny.cells("small", seeds=2)
    assert [(cell.row, cell.seed) for cell in cells] == [
        ("fedpm-klms", 0),
        ("fedavg", 0),
        ("one", 0),
        ("fedpm-klms", 1),
        ("fedavg", 1),
    ]
    done: list[str] = []
    grid.run_cells(cells[:2], tmp_path, workers=1, report=lambda cell: done.append(cell.row))
    grid.run_cells(cells, tmp_path, workers=2, report=lambda cell: done.append(f"{cell.row} {cell.seed}"))
    assert sorted(done) == ["fedavg", "fedavg 1", "fedpm-klms", "fedpm-klms 1", "one 0"]
    whole = grid.collect(tiny, cells, tmp_path)
    assert set(whole["data"]["mnist"]["fedavg"]["seeds"]) == {"0", "1"}
    assert len(whole["data"]["mnist"]["fedavg"]["series"]["bits_per_parameter"]) == 3
    assert json.loads(json.dumps(whole)) == whole

    # A run that lost its checkpoint is not complete. Once its folder is gone, as the error says, it runs again.
    (cells[0].folder(tmp_path) / "checkpoint.npz").unlink()
    assert [found.rounds for found in grid.status(cells, tmp_path)] == [0, 3, 3, 3, 3]
    with pytest.raises(KLMSError, match="delete the folder and run it again"):
        grid.run_cells(cells, tmp_path, workers=1, report=lambda cell: None)
    shutil.rmtree(cells[0].folder(tmp_path))
    grid.run_cells(cells, tmp_path, workers=1, report=lambda cell: None)
    assert grid.collect(tiny, cells, tmp_path) == whole

    # Lost lines and a damaged checkpoint cannot be repaired: the error says so.
    metrics = cells[1].folder(tmp_path) / "metrics.jsonl"
    metrics.write_text("\n".join(metrics.read_text().splitlines()[:2]) + "\n")
    with pytest.raises(KLMSError, match=r"fedavg, mnist, seed 0.*lost lines"):
        grid.run_cells(cells, tmp_path, workers=1, report=lambda cell: None)
    (cells[2].folder(tmp_path) / "checkpoint.npz").write_bytes(b"PK")
    with pytest.raises(RunFolderError, match="damaged"):
        grid.run_cells(cells[2:], tmp_path, workers=1, report=lambda cell: None)


def test_a_folder_of_other_settings_is_not_taken(mnist, tmp_path):
    cells = experiment(mnist).cells("small", only=["fedavg"], seeds=1)
    grid.run_cells(cells, tmp_path, workers=1, report=lambda cell: None)
    other = experiment(mnist)
    other.rows["fedavg"] = {"lr": 0.05}
    with pytest.raises(RunFolderError, match="other settings"):
        grid.run_cells(other.cells("small", only=["fedavg"], seeds=1), tmp_path, workers=1, report=lambda cell: None)


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
from tests.experiments.test_experiments import experiment

append = RunFolder.append

def append_and_wait(self, record, state):
    append(self, record, state)
    time.sleep(3600)

RunFolder.append = append_and_wait  # workers import this file, too

if __name__ == "__main__":
    cells = experiment(Path(sys.argv[1])).cells("small", seeds=2)
    grid.run_cells(cells, Path(sys.argv[2]), workers=2, report=lambda cell: None)
"""


def start_and_wait_for_a_round(mnist: Path, runs: Path) -> subprocess.Popen[bytes]:
    """Start the experiment in a process of its own; each of its workers waits for its end once it has done a round."""

    def rounds() -> int:
        return sum(len(list(RunFolder(path.parent).records())) for path in runs.rglob("checkpoint.npz"))

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
    cells = experiment(mnist).cells("small", seeds=2)
    assert 2 <= sum(found.rounds for found in grid.status(cells, tmp_path / "killed")) <= 4
    for name in ("killed", "whole"):
        grid.run_cells(cells, tmp_path / name, workers=1, report=lambda cell: None)
    for cell in cells:
        assert result(cell.folder(tmp_path / "killed")) == result(cell.folder(tmp_path / "whole"))


def test_the_toy_model_behaves_as_the_paper_says():
    overhead = toy.TOYS["toy-overhead"].run()["curves"]
    assert list(overhead) == ["0", "2", "4", "6"]
    for curve in overhead.values():
        assert curve["mean"][0] > 1.5 * curve["mean"][-1]
        assert np.all(np.diff(curve["deviation"]) < 0.01)
        assert curve["deviation"][-1] < 0.1 * curve["deviation"][0]
    last = [curve["mean"][-1] for curve in overhead.values()]
    assert last[0] > 3 * last[1] > 6 * last[2] > 6 * last[3]
    spread = list(toy.TOYS["toy-heterogeneity"].run()["curves"].values())
    first = [curve["mean"][0] for curve in spread]
    assert first[-1] > first[0] + 0.01  # the standard error of each is 0.002
    assert spread[-1]["mean"][-1] < 0.05 < 0.8 < first[-1]


def test_a_part_of_an_experiment_is_not_committed_as_the_whole(tmp_path, mnist):
    """Nor is a run on other data: the committed results are those of the whole grid on the real data."""
    arguments = ["experiment", "run", "kl-by-layer", "--data-dir", str(mnist), "--rounds", "1", "--workers", "1"]
    places = ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path / "results")]
    shown = CliRunner().invoke(app, [*arguments, *places])
    assert shown.exit_code == 0, shown.output
    assert not (tmp_path / "results").exists()
    assert [path.parent.parent.name for path in (tmp_path / "runs").rglob("results.json")] == ["kl-by-layer"]


def test_the_commands(tmp_path, mnist):
    shown = CliRunner().invoke(app, ["experiment", "list"])
    assert shown.exit_code == 0
    for name in catalogue.names():
        assert name in shown.output
    made = CliRunner().invoke(app, ["experiment", "run", "toy-overhead", "--results", str(tmp_path)])
    assert made.exit_code == 0, made.output
    committed = json.loads((Path(__file__).parents[2] / "results" / "toy-overhead.json").read_text())
    assert json.loads((tmp_path / "toy-overhead.json").read_text()) == committed
    stands = CliRunner().invoke(app, ["experiment", "status", "kl-by-layer", "--runs", str(tmp_path)])
    assert "0 of 1 complete" in stands.output
    both = CliRunner().invoke(
        app,
        ["experiment", "status", "table1", "--only", "fedpm-klms, fewer bits", "--only", "drive,eden", "--seeds", "1"],
    )
    assert "of 3 complete" in both.output
    wrong = CliRunner().invoke(app, ["experiment", "run", "tabel1"])
    assert wrong.exit_code == 1
    assert "table1" in wrong.output


def test_the_picture_of_the_demo_shows_bytes_both_ways(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn = []
    monkeypatch.setattr(figure, "savefig", lambda self, *_, **__: drawn.append(self))
    for method, down in (("fedavg", None), ("klms", 9_000_000), ("fedpm-klms", 1_000_000)):
        lines = [line(n, n / 10, bytes_up=1_000_000, bytes_down=down) for n in (1, 2)]
        write_run(tmp_path / f"{method}-2", method, rounds=2, lines=lines)
    demo.draw(tmp_path, 2)
    (axes,) = drawn[0].axes
    assert {one.get_label(): list(one.get_xdata()) for one in axes.lines} == {
        "klms": [10.0, 20.0],
        "fedpm-klms": [2.0, 4.0],
    }  # what FedAvg's run sent down is not known
    assert "up and down" in axes.get_xlabel()
