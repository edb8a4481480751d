"""Run folders of strangers: what lies in the place of a file may wait, have no end or fill the memory."""

import dataclasses
import json
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.engine.federation import Layer, RunDescription
from klms.engine.ledger import LedgerRecord
from klms.errors import RunFolderError
from klms.experiments import catalogue
from klms.methods.state import State
from klms.report.collect import collect
from klms.report.serve import Server
from klms.runs import run_files, run_folder
from klms.runs.run_files import CHECKPOINT, CONFIG, DESCRIPTION, LARGEST, LOCK, METRICS, TABLE, VERSIONS
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.support.odd_files import ODD, replace, without_waiting

runner = CliRunner()


@pytest.fixture(autouse=True)
def never_wait():
    with without_waiting():
        yield


def record(number: int, **more) -> LedgerRecord:
    return LedgerRecord(round=number, uplink_bytes=10, downlink_bytes=10, bits_per_parameter=0.5, **more)


def state(number: int, size: int = 9) -> State:
    return State(number, {"theta": np.full(size, 0.5, np.float32), "block_bounds": np.array([0, 4, 9])})


def write(path: Path, seed: int) -> None:
    made = RunFolder.create(path, resolve("fedpm-klms", profile="small", given={"seed": seed}))
    made.describe(RunDescription(layers=[Layer(name="a", size=9)]))
    for number in (1, 2):
        made.append(record(number), state(number))
    made.write_table()


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Two sound runs, which are written to the disk once and copied from there."""
    root = tmp_path_factory.mktemp("written")
    for seed, name in enumerate(("odd", "sound")):
        write(root / name, seed)
    return root


@pytest.fixture
def folder(written, tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(written / "odd", tmp_path / "odd"))


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [CONFIG, VERSIONS, METRICS, CHECKPOINT, DESCRIPTION])
def test_a_report_says_what_it_is_and_shows_the_rest(name, kind, folder, written, tmp_path):
    shutil.copytree(written / "sound", tmp_path / "sound")
    replace(folder.path / name, kind)
    found = collect([tmp_path])
    (remark,) = [*found.left_out, *found.incomplete]
    assert remark.name == "odd"
    assert name in remark.why
    assert kind in remark.why
    shown = ["sound"] if name in (CONFIG, METRICS) else ["odd", "sound"]
    assert [run.name for run in found.runs] == shown


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", [CONFIG, VERSIONS, METRICS, CHECKPOINT])
def test_it_is_not_resumed(name, kind, folder):
    replace(folder.path / name, kind)
    with pytest.raises(RunFolderError, match=f"{name}.*{kind}"):
        RunFolder(folder.path).resume()


@pytest.mark.parametrize("kind", ODD)
def test_what_a_resumed_run_writes_anew_is_replaced(kind, folder):
    for name in (DESCRIPTION, TABLE):
        replace(folder.path / name, kind)
    for write_again in (lambda: folder.describe(RunDescription()), folder.write_table):
        if kind == "a folder":
            with pytest.raises(RunFolderError, match="cannot be written"):
                write_again()
        else:
            write_again()
    assert RunFolder(folder.path).resume().round == 2


@pytest.mark.parametrize("kind", [kind for kind in ODD if not kind.startswith("it has")])
def test_it_is_no_lock(kind, folder):
    replace(folder.path / LOCK, kind)
    with pytest.raises(RunFolderError, match=r"cannot be written: (it is a|Is a directory)"), folder.locked():
        pass


COMMANDS = {
    "report": (CONFIG, METRICS),
    "export": (CONFIG, METRICS, CHECKPOINT),
    "run --resume": (CONFIG, CHECKPOINT),  # the ledger is read after the data, by `RunFolder.resume`
    "inspect": (CONFIG, METRICS),
}
"""Commands with the files without which they cannot do anything."""


@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize(("command", "name"), [(command, name) for command in COMMANDS for name in COMMANDS[command]])
def test_every_command_ends_with_one_line(command, name, kind, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    replace(folder.path / name, kind)
    shown = runner.invoke(app, [*command.split(), "odd"])
    assert shown.exit_code == 1, shown.output
    assert any(name in line and kind in line for line in shown.output.splitlines())


@pytest.mark.parametrize("kind", [kind for kind in ODD if kind != "a folder"])
def test_a_file_to_inspect_or_to_take_settings_from_is_a_regular_one(kind, tmp_path):
    replace(tmp_path / "file", kind)
    for command in (["inspect"], ["run", "fedavg", "--config"]):
        shown = runner.invoke(app, [*command, str(tmp_path / "file")])
        assert shown.exit_code == 1
        assert kind in shown.output


@pytest.mark.parametrize("kind", ODD)
def test_the_status_of_an_experiment(kind, written, tmp_path):
    (cell, *_) = catalogue.load("kl-by-layer").cells("small", tmp_path)
    shutil.copytree(written / "odd", cell.folder.path)
    cell = dataclasses.replace(cell, config=cell.folder.config())
    assert cell.rounds() == 2
    replace(cell.folder.path / CHECKPOINT, kind)
    with pytest.raises(RunFolderError, match=kind):
        cell.rounds()


@pytest.mark.parametrize("kind", ODD)
def test_the_live_page_serves_regular_files_only(kind, folder, tmp_path):
    with Server([tmp_path]) as server:
        files = server.document()["tasks"][0]["runs"][0]["files"]
        assert set(files) == {CONFIG, METRICS, TABLE, DESCRIPTION, VERSIONS}
        for name, address in files.items():
            assert server.file(f"/{address}") == (folder.path / name).read_bytes()
            replace(folder.path / name, kind)
            assert server.file(f"/{address}") is None
        assert server.document()["runs"] == 0


def test_links_to_regular_files_are_read(folder, tmp_path):
    for name in (CONFIG, VERSIONS, METRICS, CHECKPOINT):
        (folder.path / name).rename(tmp_path / name)
        (folder.path / name).symlink_to(tmp_path / name)
    assert RunFolder(folder.path).resume().round == 2
    assert collect([folder.path]).incomplete == []


def test_a_line_that_is_too_long_ends_the_ledger(folder, monkeypatch):
    lines = (folder.path / METRICS).read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(run_folder, "LONGEST_LINE", max(map(len, lines)))
    assert folder.read_ledger()[1] == ""
    (folder.path / METRICS).write_bytes(lines[0] + b" " * 300 + lines[1] + b"\n")
    records, note = folder.read_ledger()
    assert [one.round for one in records] == [1]
    assert "line 2 of metrics.jsonl is damaged (it has" in note


@pytest.mark.parametrize("name", [METRICS, CHECKPOINT, DESCRIPTION])
def test_what_could_not_be_read_again_is_not_written(name, folder, monkeypatch):
    monkeypatch.setitem(LARGEST, name, (folder.path / name).stat().st_size)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}

    def write_more() -> None:
        if name == DESCRIPTION:
            folder.describe(RunDescription(layers=[Layer(name="much longer", size=9)]))
        else:
            folder.append(record(3), state(3, size=10_000))

    with pytest.raises(RunFolderError, match=rf"{name} would have .* can be read again"):
        write_more()
    if name != CHECKPOINT:  # the line of a round comes before its checkpoint
        assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    assert folder.resume().round == 2


def test_a_line_that_could_not_be_read_again_is_not_written(folder, monkeypatch):
    monkeypatch.setattr(run_files, "LONGEST_LINE", 1000)
    with pytest.raises(RunFolderError, match=r"a line of .* would have"):
        folder.append(record(3, clients=tuple(range(1000))), state(3))
    assert folder.resume().round == 2


def test_the_memory_of_a_report_does_not_grow_with_the_model(folder):
    folder.append(record(3), state(3, size=2_000_000))  # 8 MB
    tracemalloc.start()
    try:
        assert folder.checkpointed_blocks() == (3, [0, 4, 9])
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_a_block_map_is_not_larger_than_any_that_klms_makes(folder, monkeypatch):
    monkeypatch.setattr(run_folder, "_LARGEST_BLOCK_MAP", 1000)
    folder.append(record(3), State(3, {"block_bounds": np.arange(1000)}))
    with pytest.raises(RunFolderError, match="take more than 1,000 bytes"):
        folder.checkpointed_blocks()


def test_the_largest_sizes_leave_room_for_large_runs(tmp_path):
    """What the comments in `run_files` promise, measured."""
    settings = resolve("fedpm-klms", given={"data_dir": "x" * 4096})
    assert len((RunFolder.create(tmp_path / "run", settings).path / CONFIG).read_bytes()) < LARGEST[CONFIG] / 4
    line = record(1, clients=tuple(range(1000, 2000)), message_bytes=(12345,) * 1000).to_json()
    assert 20_000 * len(line) < 1.1 * LARGEST[METRICS]
    split = json.dumps({"split": [[10] * 100] * 1000})
    assert 100 * len(split) < LARGEST[DESCRIPTION]
