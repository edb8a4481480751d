"""A path may be a string wherever a function takes one."""

import json
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import klms
import klms.data
from klms.engine.federation import RunDescription
from klms.experiments import catalogue, demo, results, results_file
from klms.report import page
from klms.report.collect import collect
from klms.report.document import make
from klms.report.serve import Server
from klms.runs import execution, export, trackers
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.report.folders import write_run
from tests.support.small_data import write_mnist


def test_data_sets(tmp_path):
    folder = str(write_mnist(tmp_path / "mnist", train=20, test=10))
    loaded = klms.data.load("mnist", folder=folder, cache=str(tmp_path / "cache"))
    assert len(loaded.train_y) == 20
    turn = [{"sender": "a", "text": "one two three"}]
    (tmp_path / "dataset.json").write_text(json.dumps({"x": {"messages": [turn] * 10}}))
    cached = klms.data.get("chitchat", str(tmp_path / "cache"), folder=str(tmp_path))
    assert cached == tmp_path / "cache" / "chitchat.npz"
    again = klms.data.load("chitchat", cache=str(tmp_path / "cache"))
    assert again.kind == "text"


def test_run_folders_and_settings(tmp_path):
    (tmp_path / "run.toml").write_text("rounds = 7\n")
    config = resolve("fedavg", file=str(tmp_path / "run.toml"), given={"data_dir": str(tmp_path)})
    assert (config.rounds, config.data_dir) == (7, tmp_path)
    path = str(tmp_path / "run")
    RunFolder.check_free(path)
    assert RunFolder.create(path, config).path == Path(path)
    assert RunFolder.open_or_create(path, config, RunDescription()).config() == config
    assert RunFolder(path).config() == config


def test_a_run_from_its_start_to_an_exported_model(tmp_path):
    pytest.importorskip("torch")
    mnist = str(write_mnist(tmp_path / "mnist", train=20, test=10))
    given = {"data_dir": mnist, "rounds": 1, "clients": 2, "width": 0.05, "batch": 10}
    path, file = str(tmp_path / "run"), str(tmp_path / "model")
    assert execution.start_or_resume(resolve("fedavg", given=given), path).rounds == 1
    assert export.write(path, file) == Path(file)
    assert export.load(file).training is False


def test_federate(tmp_path):
    torch = pytest.importorskip("torch")
    clients = [(np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1]))]
    folder, saved = str(tmp_path / "run"), str(tmp_path / "saved")
    run = klms.federate(torch.nn.Linear(2, 2), clients, method="fedavg", rounds=1, folder=folder)
    assert run.save(saved) == Path(saved)
    assert RunFolder(folder).rounds() == RunFolder(saved).rounds() == 1


def test_reports(tmp_path):
    runs, out = str(write_run(tmp_path / "run").parent), str(tmp_path / "report")
    assert len(collect([runs]).runs) == 1
    page.write(make([runs]), out)
    assert (tmp_path / "report" / "index.html").exists()
    with Server([runs]) as server:
        assert server.document()["runs"] == 1


def test_experiments(tmp_path):
    runs = str(tmp_path)
    (cell, *_) = cells = catalogue.load("kl-by-layer").cells("small", runs)
    assert cell.folder.path.is_relative_to(tmp_path)
    assert [cell.rounds() for cell in cells] == [0] * len(cells)
    assert results_file.collect(catalogue.load("kl-by-layer"), cells) == {}
    assert results_file.write_json(str(tmp_path / "deep" / "x.json"), {}) == tmp_path / "deep" / "x.json"
    committed = str(Path(__file__).parents[1] / "results")
    assert "| fedpm-klms |" in results.document(committed)
    assert "| fedpm-klms |" in results.readme(committed, "<!-- results -->\n<!-- /results -->")
    assert {path.parent for path in demo.configs(runs, 3)} == {tmp_path}


def test_trackers(tmp_path, monkeypatch):
    @contextmanager
    def tracker(folder, config):
        assert folder == tmp_path
        yield lambda number, numbers: None

    monkeypatch.setitem(trackers.TRACKERS, "own", tracker)
    with trackers.tracked(["own"], str(tmp_path), resolve("fedavg"), lambda config, record: None):
        pass


def test_flower_apps(tmp_path):
    pytest.importorskip("flwr")
    from klms.flower import template_app
    from klms.flower.deployment import Deployment
    from klms.flower.settings import ServerSettings

    path = str(tmp_path / "app")
    assert template_app.create(path, resolve("fedavg"), ServerSettings()) == Path(path)
    Deployment(path, 1)
