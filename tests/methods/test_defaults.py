"""Every method learns with its own defaults; a user gives the size of the run and nothing else."""

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.methods.table import METHODS
from klms.runs import execution
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.support.small_data import write_mnist

LANGEVIN = {name for name, entry in METHODS.items() if entry.family == "sgld"}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("mnist"), train=600, test=200)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_learns_with_its_defaults(digits, tmp_path, method):
    """Small, easy data, so that it takes a second.

    Langevin methods take one gradient per round, and schemes of top-k send a hundredth or so of the entries: these need
    more rounds.
    """
    size = {"data_dir": digits, "width": 0.3, "clients": 3, "epochs": 1, "batch": 32}
    rounds = 30 if method in LANGEVIN else 12 if METHODS[method].family == "topk" else 6
    summary = execution.start_or_resume(resolve(method, given=size | {"rounds": rounds}), tmp_path / "run")
    assert summary.metrics["accuracy"] > 0.6


@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_a_method_learns_mnist_with_its_defaults(tmp_path, method):
    size = ["--images", "2000", "--rounds", "8", "--epochs", "1", "--batch", "32"]
    done = CliRunner().invoke(app, ["run", method, *size, "--workers", "2", "--out", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    accuracy = execution.summarise(RunFolder(tmp_path / "run")).metrics["accuracy"]
    print(f"{method}: {accuracy:.4f}")
    assert accuracy >= (0.4 if method in LANGEVIN else 0.6)
