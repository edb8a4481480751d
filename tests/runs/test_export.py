import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.errors import CorruptMessage
from klms.runs import export
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


def test_a_folder_without_a_run_is_not_exported(tmp_path):
    exported = runner.invoke(app, ["export", str(tmp_path)])
    assert exported.exit_code == 1
    assert "not the folder of a run" in exported.output
