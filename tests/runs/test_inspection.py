"""`klms.inspect` and the command `klms inspect`, which prints what the function returns."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import klms
from klms.cli import app
from klms.compressors.schemes import SCHEMES
from klms.container import write_arrays
from klms.errors import CorruptMessage, RunFolderError, UnsupportedMessage
from klms.frame import Frame, Kind
from klms.methods.state import State
from klms.runs.inspection import ModelInfo, SchemeInfo, UpdateInfo, fields
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.runs.test_run_folder import record
from tests.support.messages import example
from tests.support.round_trips import round_trip

runner = CliRunner()
KEY = klms.SharedKey(seed=1, round=2, client=3)
HOSTILE = "\x1b]0;owned\x07\x1b[2J[/bold]\u202e\ud800\r\n"


def exported() -> bytes:
    about = {"method": "fedavg", "model": "lenet", "width": 0.05, "shape": [1, 28, 28], "classes": 10, "seed": 0}
    body = write_arrays({"parameters": np.zeros(3, np.float32)}, about | {"round": 1, "mask": False})
    return Frame(Kind.MODEL, 1, 0, bytes(8), body).to_bytes()


def update(name: str = "weight") -> bytes:
    arrays = {name: np.ones((20, 30), np.float32), "steps": np.arange(3)}
    return klms.compress(arrays, 2.0, key=KEY, rng=np.random.default_rng(0))


CONTENTS = {
    "codec": lambda: example("bernoulli", send_blocks=False, scalars=(2.5,), memory=0)[0],
    "compress": update,
    "scheme": lambda: round_trip("topk")[0],
    "model": exported,
}


@pytest.mark.parametrize("kind", CONTENTS)
def test_bytes_a_path_and_a_string_are_the_same(kind, tmp_path):
    data, file = CONTENTS[kind](), tmp_path / "file"
    file.write_bytes(data)
    found = klms.inspect(data)
    assert klms.inspect(bytearray(data)) == klms.inspect(memoryview(data)) == found
    assert klms.inspect(file) == klms.inspect(str(file)) == found


@pytest.mark.parametrize("kind", CONTENTS)
def test_the_command_prints_what_the_function_returns(kind, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(CONTENTS[kind]())
    found = fields(klms.inspect(file))
    shown = runner.invoke(app, ["inspect", "--json", str(file)])
    assert json.loads(shown.output) == json.loads(json.dumps(found))
    table = runner.invoke(app, ["inspect", str(file)])
    assert table.exit_code == 0
    assert all(name.replace("_", " ") in table.output for name in found)


def test_what_is_found():
    message = CONTENTS["codec"]()
    info = klms.inspect(message)
    assert isinstance(info, klms.MessageInfo)
    assert (info.family, info.scalars, info.total_bytes) == ("bernoulli", (2.5,), len(message))
    assert fields(info) == dataclasses.asdict(info) | {
        "tag": info.tag.hex(),
        "bits_per_parameter": info.bits_per_parameter,
    }
    info = klms.inspect(update())
    assert isinstance(info, UpdateInfo)
    assert not info.is_difference
    assert info.arrays == {"weight": "[20, 30] <f4", "steps": "[3] <i8"}
    assert (info.parameters, info.bits_per_parameter, info.round) == (603, 8 * len(update()) / 603, KEY.round)
    info = klms.inspect(exported())
    assert isinstance(info, ModelInfo)
    assert (info.method, info.shape, info.parameter_bytes) == ("fedavg", (1, 28, 28), 12)


@pytest.mark.parametrize("name", [name for name, scheme in SCHEMES.items() if scheme.wire_number])
def test_every_scheme_with_an_envelope_is_named(name):
    info = klms.inspect(round_trip(name)[0])
    assert isinstance(info, SchemeInfo)
    assert name in info.scheme.split(" or ")
    assert info.bits_per_parameter == 8 * info.total_bytes / info.d


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", CorruptMessage),
        (b"KB", CorruptMessage),
        (b"KB\x09" + bytes(9), UnsupportedMessage),
        (b"KX" + bytes(40), UnsupportedMessage),
        (Frame(Kind.REPLY, 1, 1, bytes(8)).to_bytes(), CorruptMessage),
        (b"KL" + bytes(40), UnsupportedMessage),
        (exported()[:-1], CorruptMessage),
        (b"something else, which has no magic bytes", CorruptMessage),
    ],
)
def test_errors_name_the_file_and_have_a_type(data, error, tmp_path):
    with pytest.raises(error):
        klms.inspect(data)
    file = tmp_path / "file"
    file.write_bytes(data)
    with pytest.raises(error, match=str(file)):
        klms.inspect(file)
    shown = runner.invoke(app, ["inspect", str(file)])
    assert shown.exit_code == 1
    assert shown.output.startswith(f"error: {file}: ")


def test_a_run_folder_is_summarised(tmp_path):
    folder = RunFolder.create(tmp_path / "run", resolve("fedpm-klms", profile="small"))
    with pytest.raises(RunFolderError, match=r"run: there is no metrics.jsonl yet"):
        klms.inspect(folder.path)
    folder.append(record(1, accuracy=0.5), State(1))
    found = klms.inspect(str(folder.path))
    assert (found.method, found.rounds, found.metrics) == ("fedpm-klms", 1, {"accuracy": 0.5})
    shown = runner.invoke(app, ["inspect", str(folder.path)])
    assert shown.exit_code == 0
    assert "accuracy: 0.5" in shown.output
    with pytest.raises(RunFolderError, match="not the folder of a run"):
        klms.inspect(tmp_path)


def test_names_in_a_file_do_not_reach_the_terminal(tmp_path):
    """The name of an array has escape sequences, and what rich takes for markup; lone surrogates are refused."""
    file = tmp_path / "file"
    file.write_bytes(update(HOSTILE.replace("\ud800", "")))
    shown = runner.invoke(app, ["inspect", str(file)])
    assert shown.exit_code == 0, shown.exception
    assert r"\x1b]0;owned\x07\x1b[2J[/bold]\u202e\r\n: [20, 30] <f4" in shown.output
    assert all(line.isprintable() for line in shown.output.splitlines())
    as_json = runner.invoke(app, ["inspect", "--json", str(file)])
    assert as_json.output.isascii()
    assert HOSTILE.replace("\ud800", "") in json.loads(as_json.output)["arrays"]


def test_names_of_files_do_not_reach_the_terminal(tmp_path):
    file = tmp_path / "a\x1b[2J\udcff"
    file.write_bytes(b"something else")
    for command in (["inspect"], ["export"], ["report"]):
        shown = runner.invoke(app, [*command, str(file)])
        assert shown.exit_code == 1
        assert r"a\x1b[2J\udcff" in shown.output
        assert all(line.isprintable() for line in shown.output.splitlines())
