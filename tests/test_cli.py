import json
import subprocess
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import klms
from klms.cli import app

runner = CliRunner()


@pytest.fixture
def message_file(tmp_path):
    p = klms.Bernoulli(np.full(100, 0.5))
    message = klms.Codec().encode(
        p, p, klms.fixed_blocks(100, 25), key=klms.SharedKey(1, 2, 3), rng=np.random.default_rng(0), scalars=[2.5]
    )
    path = tmp_path / "a.klms"
    path.write_bytes(message)
    return path


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip() == klms.__version__


def test_help_has_examples():
    for command in (["inspect"], ["demo"], ["run"], ["export"], ["data", "get"], ["bench", "codec"]):
        result = runner.invoke(app, [*command, "--help"])
        assert result.exit_code == 0
        assert "Example" in result.output


def test_inspect(message_file):
    result = runner.invoke(app, ["inspect", str(message_file)])
    assert result.exit_code == 0
    assert "bernoulli" in result.output
    fields = json.loads(runner.invoke(app, ["inspect", "--json", str(message_file)]).output)
    assert fields["d"] == 100
    assert fields["scalars"] == [2.5]
    assert fields["bits_per_parameter"] == 8 * message_file.stat().st_size / 100


def test_inspect_says_what_is_wrong(message_file, tmp_path):
    missing = runner.invoke(app, ["inspect", str(tmp_path / "[/bold]none")])
    assert missing.exit_code == 1
    assert "No such file" in missing.output
    message_file.write_bytes(message_file.read_bytes()[:-1])
    broken = runner.invoke(app, ["inspect", str(message_file)])
    assert broken.exit_code == 1
    assert "checksum" in broken.output
    assert "Traceback" not in broken.output


def test_bench_prints_json_for_machines():
    result = runner.invoke(
        app, ["bench", "codec", "--family", "gaussian", "--bits", "2", "--d", "20000", "--no-scaling", "--json"]
    )
    assert result.exit_code == 0, result.output
    rows = json.loads(result.output)["rows"]
    assert {row["family"] for row in rows} == {"gaussian"}
    assert all(row["encode_ns"] > 0 and row["decode_ns"] > 0 for row in rows)
    assert runner.invoke(app, ["bench", "codec", "--family", "poisson"]).exit_code == 1
    assert runner.invoke(app, ["bench", "codec", "--bits", "17"]).exit_code == 1


def test_the_library_imports_neither_torch_nor_flower_nor_the_command_line():
    heavy = "torch flwr typer rich matplotlib"
    check = f"import sys, klms, klms.codec; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
