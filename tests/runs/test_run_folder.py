import contextlib
import csv
import json
import subprocess
import sys

import numpy as np
import pytest

from klms.engine.ledger import LedgerRecord
from klms.errors import RunFolderError
from klms.methods.state import State
from klms.runs.run_folder import CHECKPOINT, CONFIG, DESCRIPTION, METRICS, TABLE, RunDescription, RunFolder
from klms.runs.settings import resolve


def record(number: int, **more) -> LedgerRecord:
    return LedgerRecord(round=number, uplink_bytes=10 * number, bits_per_parameter=0.5, **more)


def state(number: int) -> State:
    return State(number, {"theta": np.full(9, 0.5, np.float32), "block_bounds": np.array([0, 4, 9])})


@pytest.fixture
def folder(tmp_path) -> RunFolder:
    made = RunFolder.create(tmp_path / "run", resolve("fedpm-klms", profile="small"))
    for number in (1, 2, 3):
        made.append(record(number, seconds={"train": 0.25}), state(number))
    return made


def test_what_is_written_is_read(folder):
    assert folder.config() == resolve("fedpm-klms", profile="small")
    assert folder.settings()["method"] == "fedpm-klms"
    assert [one.uplink_bytes for one in folder.records()] == [10, 20, 30]
    assert folder.read_ledger()[1] == ""
    assert folder.rounds() == 3
    assert folder.state().round == 3
    assert folder.block_bounds() == [0, 4, 9]
    assert folder.versions()["numpy"] == np.__version__


def test_a_new_folder_is_empty_and_is_not_overwritten(tmp_path):
    folder = RunFolder.create(tmp_path, resolve("fedavg"))
    assert folder.read_ledger() == ([], f"there is no {METRICS} yet")
    assert (folder.rounds(), folder.state(), folder.block_bounds()) == (0, None, [])
    assert folder.description() == RunDescription()
    with pytest.raises(RunFolderError, match="--resume"):
        RunFolder.create(tmp_path, resolve("fedavg"))


def test_a_configuration_of_an_earlier_release_is_read(folder):
    """It has all settings that existed then, and none that came later."""
    text = (folder.path / CONFIG).read_text()
    (folder.path / CONFIG).write_text(
        "".join(line for line in text.splitlines(True) if not line.startswith("layer_kl"))
    )
    assert folder.config() == resolve("fedpm-klms", profile="small")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("rounds = ", "not TOML"),
        ("rounds = 3", "names no method"),
        ('method = "fedpn"', "fedpm"),
        (None, "not the folder"),
    ],
)
def test_damaged_settings_are_explained(folder, content, reason):
    (folder.path / CONFIG).unlink()
    if content is not None:
        (folder.path / CONFIG).write_text(content)
    with pytest.raises(RunFolderError, match=reason):
        folder.config()


def test_a_line_that_is_being_written_is_dropped_silently(folder):
    with (folder.path / METRICS).open("ab") as file:
        file.write('{"round": 4, "note": "ä'.encode()[:-1])
    assert len(folder.read_ledger()[0]) == 3
    assert folder.read_ledger()[1] == ""
    folder.rewind(2)
    assert [one.round for one in folder.records()] == [1, 2]
    assert (folder.path / METRICS).read_bytes().endswith(b"\n")


@pytest.mark.parametrize("bad", ["[1, 2]", "garbage", '{"round": 2}', "[" * 100_000, "NaN", record(7).to_json()])
def test_a_damaged_line_ends_the_ledger_with_a_note(folder, bad):
    first, _, third = (folder.path / METRICS).read_text().splitlines()
    (folder.path / METRICS).write_text("\n".join([first, bad, third, ""]))
    records, note = folder.read_ledger()
    assert [one.round for one in records] == [1]
    assert note.startswith(f"line 2 of {METRICS} is damaged (")
    with pytest.raises(RunFolderError, match=r"lost lines.*line 2"):
        folder.state()


def test_resuming_needs_the_lines_of_the_checkpoint_but_not_more(folder):
    folder.append(record(4), state(3))  # killed between the line and its checkpoint
    assert folder.rounds() == 3
    folder.rewind(folder.state().round)
    assert [one.round for one in folder.records()] == [1, 2, 3]
    folder.rewind(2)
    with pytest.raises(RunFolderError, match="lost lines"):
        folder.state()


def test_a_damaged_checkpoint_is_reported(folder):
    whole = (folder.path / CHECKPOINT).read_bytes()
    for damaged in (b"PK", whole[: len(whole) // 2], b""):
        (folder.path / CHECKPOINT).write_bytes(damaged)
        assert folder.block_bounds() == []
        for read in (folder.state, folder.rounds):
            with pytest.raises(RunFolderError, match="damaged"):
                read()


def test_no_flipped_bit_of_a_checkpoint_is_worse_than_damage(folder):
    whole = (folder.path / CHECKPOINT).read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= (1, 16, 128)[place % 3]
        (folder.path / CHECKPOINT).write_bytes(flipped)
        assert folder.block_bounds() in ([], [0, 4, 9])
        with contextlib.suppress(RunFolderError):
            folder.state()


@pytest.mark.parametrize("bounds", [[0], [5, 9], [0, 9, 4], [[0, 1]], [0.0, 9.0]])
def test_bounds_that_are_not_a_block_map_are_ignored(folder, bounds):
    folder.append(record(4), State(4, {"block_bounds": np.array(bounds)}))
    assert folder.block_bounds() == []


def test_the_description(folder):
    folder.describe({"layers": [{"name": "a", "size": 3}], "split": [[1, 2], [3, 4]]})
    assert folder.description() == RunDescription((("a", 3),), ((1, 2), (3, 4)))


@pytest.mark.parametrize(
    "content",
    [
        *("", "[]", "{", '{"layers": 3}', '{"split": [[1], [1, 2]]}', '{"split": [[], []]}', '{"split": [["x"]]}'),
        *('{"split": [[-4]]}', '{"layers": [{"name": "a", "size": -1}]}', '{"split": [[1e999]]}'),
    ],
)
def test_a_description_that_makes_no_sense_is_empty(folder, content):
    (folder.path / DESCRIPTION).write_text(content)
    assert folder.description() == RunDescription()


def test_the_table_has_every_number_of_any_round(folder):
    folder.append(record(4, accuracy=0.5, replies={"ok": 2}), state(4))
    folder.write_table()
    with (folder.path / TABLE).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["round"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["accuracy"] for row in rows] == ["", "", "", "0.5"]
    assert [row["seconds/train"] for row in rows] == ["0.25", "0.25", "0.25", ""]
    assert rows[3]["replies/ok"] == "2.0"


def test_one_process_at_a_time(folder):
    program = (
        f"import pathlib; from klms.runs.run_folder import RunFolder; RunFolder(pathlib.Path({str(folder.path)!r}))"
    )
    with folder.locked():
        other = subprocess.run(
            [sys.executable, "-c", f"{program}.locked().__enter__()"], capture_output=True, text=True, check=False
        )
    assert "another process is running" in other.stderr
    with folder.locked():
        pass


def test_folders_are_made_and_read_without_torch(tmp_path):
    program = f"""
import sys
sys.modules["torch"] = None
from pathlib import Path
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
RunFolder.create(Path({json.dumps(str(tmp_path / "run"))}), resolve("fedpm-klms")).config()
import klms.runs.execution, klms.runs.export, klms.runs.trackers
"""
    subprocess.run([sys.executable, "-c", program], check=True)
    assert "torch" in RunFolder(tmp_path / "run").versions()
