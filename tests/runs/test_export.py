import json

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.container import write_arrays
from klms.errors import CorruptMessage
from klms.frame import Frame, Kind
from klms.runs import export
from klms.runs.run_folder import RunFolder
from tests.support.small_data import write_mnist

runner = CliRunner()


def train(tmp_path, method):
    arguments = ["--rounds", "1", "--width", "0.2", "--clients", "3", "--out", str(tmp_path / "run")]
    trained = runner.invoke(app, ["run", method, *arguments, "--data-dir", str(write_mnist(tmp_path / "mnist"))])
    assert trained.exit_code == 0, trained.output
    assert method in trained.output
    return tmp_path / "run"


def test_a_mask_is_exported_at_a_bit_per_parameter(tmp_path):
    run = train(tmp_path, "fedpm-klms")
    exported = runner.invoke(app, ["export", str(run)])
    assert exported.exit_code == 0, exported.output
    file = run / "model.klms"
    model = export.load(file)
    assert file.stat().st_size < sum(p.numel() for p in model.parameters()) / 8 + 600
    assert 0.3 < float((model.output.weight == 0).float().mean()) < 0.7
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(CorruptMessage, match="checksum"):
        export.load(file)


def test_weights_are_exported_as_float32(tmp_path):
    run = train(tmp_path, "fedavg")
    assert runner.invoke(app, ["export", str(run), "--out", str(tmp_path / "m")]).exit_code == 0
    model = export.load(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size > 4 * sum(p.numel() for p in model.parameters())


def test_an_exported_model_can_be_inspected(tmp_path):
    run = train(tmp_path, "fedpm-klms")
    runner.invoke(app, ["export", str(run)])
    shown = runner.invoke(app, ["inspect", "--json", str(run / "model.klms")])
    assert shown.exit_code == 0, shown.output
    about = json.loads(shown.output)
    assert (about["method"], about["round"], about["mask"]) == ("fedpm-klms", 1, True)
    assert "fedpm-klms" in runner.invoke(app, ["inspect", str(run / "model.klms")]).output
    (run / "model.klms").write_bytes(b"KX\1" + bytes(40))
    broken = runner.invoke(app, ["inspect", str(run / "model.klms")])
    assert broken.exit_code == 1
    assert "checksum" in broken.output


def test_the_model_of_an_unfinished_run_is_said_to_be_that(tmp_path):
    run = train(tmp_path, "fedavg")
    assert "not finished" not in runner.invoke(app, ["export", str(run)]).output
    folder = RunFolder(run)
    folder.extend(folder.config().model_copy(update={"rounds": 3}))
    exported = runner.invoke(app, ["export", str(run)])
    assert exported.exit_code == 0
    assert "the run is not finished: this is its model after 1 of 3 rounds" in exported.output


def test_a_folder_without_a_run_is_not_exported(tmp_path):
    exported = runner.invoke(app, ["export", str(tmp_path)])
    assert exported.exit_code == 1
    assert "not the folder of a run" in exported.output


ABOUT = {"method": "fedavg", "model": "lenet", "width": 0.05, "shape": [1, 28, 28], "classes": 10, "seed": 0}
ABOUT |= {"round": 1, "mask": False, "gain": 1.0}
SIZE = 5 * 5 + 1 + 2 * 25 + 2 + 25 * 2 * 16 + 25 + 10 * 25 + 10


ZEROS = np.zeros(SIZE, np.float32)


def write(file, about, parameters=ZEROS):
    """Write what a stranger would: whatever they like, with a checksum that fits."""
    body = write_arrays({"parameters": parameters}, about)
    file.write_bytes(Frame(Kind.MODEL, 1, 0, bytes(8), body).to_bytes())
    return file


@pytest.mark.parametrize(
    "change",
    [
        *({"classes": 1.7}, {"classes": "10"}, {"classes": True}, {"classes": 0}, {"classes": -3}, {"mask": "false"}),
        *({"shape": [1, 28.5, 28]}, {"shape": "abc"}, {"shape": []}, {"shape": [1]}, {"shape": [10**30, 28, 28]}),
        *({"width": 1e300}, {"width": float("nan")}, {"width": 1e6}, {"model": "lenet5"}, {"seed": -1}),
        {"mask": True, "width": 100.0},
    ],
)
def test_a_description_is_not_taken_on_trust(tmp_path, change):
    """No silent conversion, and no memory for a model that the file cannot hold."""
    assert export.load(write(tmp_path / "good", ABOUT)).output.weight.shape == (10, 25)
    with pytest.raises(CorruptMessage):
        export.load(write(tmp_path / "bad", ABOUT | change))


@pytest.mark.parametrize("about", [None, [1], {"classes": 1}, "text"])
def test_a_description_that_is_none(tmp_path, about):
    with pytest.raises(CorruptMessage, match="description"):
        export.load(write(tmp_path / "bad", about))


def test_parameters_are_finite_and_as_many_as_the_model_has(tmp_path):
    for value in (np.nan, np.inf):
        with pytest.raises(CorruptMessage, match="not finite"):
            export.load(write(tmp_path / "bad", ABOUT, np.full(SIZE, value, dtype=np.float32)))
    for size in (0, SIZE - 1, SIZE + 1):
        with pytest.raises(CorruptMessage, match="numbers for"):
            export.load(write(tmp_path / "bad", ABOUT, np.zeros(size, np.float32)))
    for other in (np.zeros(SIZE), np.zeros((SIZE, 1), np.float32), np.zeros(SIZE, np.uint8)):
        with pytest.raises(CorruptMessage, match="does not hold"):
            export.load(write(tmp_path / "bad", ABOUT, other))


@pytest.mark.parametrize(("model", "shape", "width"), [("lenet", [1, 12, 12], 1.0), ("lstm", [3], 1e-9)])
def test_a_model_with_an_empty_layer_is_refused(tmp_path, model, shape, width):
    about = {"method": "fedpm", "model": model, "width": width, "shape": shape, "classes": 2, "seed": 0, "round": 1}
    file = write(tmp_path / "model.klms", about | {"mask": True}, np.zeros(70, np.uint8))
    with pytest.raises(CorruptMessage, match="a layer would have no parameters"):
        export.load(file)
