import re
import tomllib

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

from klms.cli import app
from klms.engine.ledger import LedgerRecord
from klms.flower import demo
from klms.flower.deployment import WireBytes


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["flower", *arguments])


def test_new_writes_an_app_with_the_settings_that_were_said(tmp_path):
    shown = invoke("new", str(tmp_path / "app"), "--method", "qsgd-klms", "--clients", "20", "--server-lr=0.25")
    assert shown.exit_code == 0, shown.output
    assert "flwr run" in shown.output
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    settings = project["tool"]["flwr"]["app"]["config"]
    assert (settings["method"], settings["clients"], settings["server_lr"]) == ("qsgd-klms", 20, 0.25)
    assert settings["min-replies"] == 1
    readme = (tmp_path / "app" / "README.md").read_text()
    assert "--federation-config 'num-supernodes=20'" in readme  # Flower simulates two nodes unless told otherwise


def test_new_with_own_adds_a_file_for_the_user_s_model_and_data(tmp_path):
    shown = invoke("new", str(tmp_path / "app"), "--own", "--rounds", "3")
    assert shown.exit_code == 0, shown.output
    assert "task.py" in shown.output
    assert "def client_data(" in (tmp_path / "app" / "klms_app" / "task.py").read_text()
    for name in ("client_app", "server_app"):
        lines = (tmp_path / "app" / "klms_app" / f"{name}.py").read_text().splitlines()[1:]
        assert len([line for line in lines if line]) == 3
        assert "from .task import" in "".join(lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["new", "{}/app", "--method", "fedpn"], "did you mean 'fedpm'"),
        (["new", "{}/app", "--clientz", "3"], "did you mean --clients"),
        (["new", "{}"], "not empty"),
    ],
)
def test_mistakes_are_explained(tmp_path, arguments, words):
    (tmp_path / "file").touch()
    shown = invoke(*[argument.format(tmp_path) for argument in arguments])
    assert shown.exit_code == 1
    assert words in shown.output


def test_help_has_examples():
    for command in ("demo", "new"):
        assert "klms flower" in invoke(command, "--help").output


def test_the_demo_shows_payload_and_wire_up_and_down(monkeypatch):
    def rounds(folder, *, rounds, secure):
        for number in range(1, rounds + 1):
            sizes = {"uplink_bytes": 900, "payload_bytes": 1000 * number, "downlink_bytes": 30 * number}
            record = LedgerRecord(round=number, bits_per_parameter=0.5, seconds={"total": 1.0}, **sizes)
            yield demo.Round(record, 0.6, WireBytes(7000 * number, 500 * number))

    monkeypatch.setattr(demo, "run", rounds)
    shown = invoke("demo", "--rounds", "2")
    assert shown.exit_code == 0, shown.output
    head, _, second, *totals = shown.output.splitlines()
    names = re.split("  +", head)
    row = dict(zip(names, second.split(), strict=True))
    assert [row[f"{what} {way}"] for what in ("payload", "wire") for way in ("up", "down")] == [
        *("2,000", "60"),
        *("14,000", "1,000"),
    ]
    assert totals[:2] == [
        "payload: 3,000 bytes up, 90 bytes down, 3,090 bytes in total",
        "wire: 21,000 bytes up, 1,500 bytes down, 22,500 bytes in total",
    ]
