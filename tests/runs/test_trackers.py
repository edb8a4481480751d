import sys
import types

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.errors import InvalidArgument
from klms.runs import execution
from klms.runs.settings import resolve
from klms.runs.trackers import tracked
from tests.support.small_data import write_mnist

SETTINGS = {"clients": 2, "rounds": 3, "width": 0.2, "batch": 32, "images": 0, "evaluate_every": 2}


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    return write_mnist(tmp_path_factory.mktemp("mnist"), train=60, test=20)


def run(path, mnist, names):
    config = resolve("fedavg", profile="small", given=SETTINGS | {"data_dir": str(mnist)})
    seen = []
    with tracked(names, path, config, lambda _, record: seen.append(record.round)) as progress:
        execution.start_or_resume(config, path, progress=progress)
    assert seen == [1, 2, 3]


def test_tensorboard_gets_every_round(tmp_path, mnist):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run(tmp_path / "run", mnist, ["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    bits = events.Scalars("bits_per_parameter")
    assert [event.step for event in bits] == [1, 2, 3]
    assert bits[0].value == pytest.approx(32, abs=0.1)
    assert [event.step for event in events.Scalars("accuracy")] == [2, 3]


def test_wandb_and_mlflow_get_every_round(tmp_path, mnist, monkeypatch):
    calls: list[tuple[object, ...]] = []
    session = types.SimpleNamespace(
        log=lambda numbers, step: calls.append(("wandb", step, numbers["bits_per_parameter"])),
        finish=lambda: calls.append(("wandb", "finish")),
    )
    wandb = types.SimpleNamespace(init=lambda **given: calls.append(("wandb", given["config"]["method"])) or session)
    mlflow = types.SimpleNamespace(
        set_experiment=lambda name: calls.append(("mlflow", name)),
        start_run=lambda run_name: calls.append(("mlflow", run_name)),
        log_params=lambda values: calls.append(("mlflow", values["method"])),
        log_metrics=lambda numbers, step: calls.append(("mlflow", step)),
        end_run=lambda: calls.append(("mlflow", "end")),
    )
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    run(tmp_path / "run", mnist, ["wandb", "mlflow"])
    assert [call[1] for call in calls if call[0] == "wandb"] == ["fedavg", 1, 2, 3, "finish"]
    assert [call[1] for call in calls if call[0] == "mlflow"] == ["klms", "run", "fedavg", 1, 2, 3, "end"]


def test_an_unknown_or_missing_tracker_is_reported(tmp_path, mnist, monkeypatch):
    with pytest.raises(InvalidArgument, match="tensorboard"):
        run(tmp_path / "a", mnist, ["tensorbord"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    shown = CliRunner().invoke(
        app, ["run", "fedavg", "--track", "wandb", "--out", str(tmp_path / "b"), "--data-dir", str(mnist)]
    )
    assert shown.exit_code == 1
    assert "pip install wandb" in shown.output
