import csv
import json
import resource
import shutil
import subprocess
import sys

import numpy as np
import pytest

from klms import files
from klms.engine.federation import Layer, RunDescription
from klms.engine.ledger import LedgerRecord
from klms.errors import RunFolderError
from klms.methods.state import State
from klms.runs.digests import key_of, settings_with_digest, with_digest
from klms.runs.run_folder import CHECKPOINT, CONFIG, DESCRIPTION, LOCK, METRICS, TABLE, VERSIONS, RunFolder
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


def flips(data: bytes, step: int = 1):
    """Copies of the bytes, each with one bit flipped, a different one in every byte."""
    for place in range(0, len(data), step):
        flipped = bytearray(data)
        flipped[place] ^= 1 << (place // step) % 8
        yield place, bytes(flipped)


def test_what_is_written_is_read(folder):
    assert folder.config() == resolve("fedpm-klms", profile="small")
    assert folder.settings()["method"] == "fedpm-klms"
    assert [one.uplink_bytes for one in folder.records()] == [10, 20, 30]
    assert folder.read_ledger()[1] == ""
    assert folder.rounds() == 3
    assert folder.state().round == 3
    assert folder.checkpointed_blocks()[1] == [0, 4, 9]
    assert folder.versions()["numpy"] == np.__version__


def test_a_new_folder_is_empty_and_is_not_overwritten(tmp_path):
    folder = RunFolder.create(tmp_path, resolve("fedavg"))
    assert folder.read_ledger() == ([], f"there is no {METRICS} yet")
    assert (folder.rounds(), folder.state(), folder.checkpointed_blocks()) == (0, None, (0, []))
    assert folder.description() == RunDescription()
    with pytest.raises(RunFolderError, match="--resume"):
        RunFolder.create(tmp_path, resolve("fedavg"))


def test_a_configuration_without_a_setting_that_came_later_is_read(folder):
    text = (folder.path / CONFIG).read_text().partition("\n")[2]
    shorter = "".join(line for line in text.splitlines(True) if not line.startswith("layer_kl"))
    (folder.path / CONFIG).write_text(settings_with_digest(shorter))
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
        (folder.path / CONFIG).write_text(settings_with_digest(content))
    with pytest.raises(RunFolderError, match=reason):
        folder.config()


def test_a_file_without_a_digest_is_refused(folder):
    text = (folder.path / CONFIG).read_text()
    (folder.path / CONFIG).write_text(text.partition("\n")[2])
    with pytest.raises(RunFolderError, match="damaged or edited"):
        RunFolder(folder.path).config()
    (folder.path / CONFIG).write_text(text)
    for name in (METRICS, VERSIONS):
        objects = [json.loads(line) for line in (folder.path / name).read_text().splitlines()]
        assert all(found.pop("check") for found in objects)
        (folder.path / name).write_text("".join(json.dumps(found) + "\n" for found in objects))
    assert folder.read_ledger() == ([], f"line 1 of {METRICS} is damaged (it has no digest)")
    with pytest.raises(RunFolderError, match="has no digest"):
        folder.versions()


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
    for damaged in (b"KX", whole[: len(whole) // 2], b"", whole + b"\0", State(3).to_bytes()):
        (folder.path / CHECKPOINT).write_bytes(damaged)
        for read in (folder.state, folder.rounds, folder.checkpointed_blocks):
            with pytest.raises(RunFolderError, match="damaged"):
                read()


def test_a_lost_checkpoint_is_reported(folder):
    (folder.path / CHECKPOINT).unlink()
    with pytest.raises(RunFolderError, match="lost its checkpoint"):
        folder.state()


def test_every_flipped_bit_of_a_checkpoint_is_found(folder):
    for place, flipped in flips((folder.path / CHECKPOINT).read_bytes()):
        (folder.path / CHECKPOINT).write_bytes(flipped)
        with pytest.raises(RunFolderError, match="damaged"):
            pytest.fail(f"byte {place} loads {folder.state()}")


def test_every_flipped_bit_of_the_other_files_is_found_or_harmless(folder):
    """Harmless: in the digest itself, or in what the kill of a run leaves at the end of the ledger."""
    folder.describe(RunDescription(layers=[Layer(name="a", size=3)]))

    def content() -> list[object]:
        read = RunFolder(folder.path)
        state, versions, description = read.state(), read.versions(), read.description()
        return [read.config(), list(read.records()), state.to_bytes(), versions, description]

    before = content()
    for name in (CONFIG, METRICS, VERSIONS, DESCRIPTION):
        whole = (folder.path / name).read_bytes()
        for place, flipped in flips(whole, step=5):
            (folder.path / name).write_bytes(flipped)
            try:
                assert content() == before, f"byte {place} of {name}"
            except RunFolderError:
                continue
        (folder.path / name).write_bytes(whole)
    assert content() == before


@pytest.mark.parametrize("change", ["lr = 0.1", "lr = 0.25"])
def test_settings_that_were_edited_are_refused(folder, change):
    text = (folder.path / CONFIG).read_text()
    assert "lr = 0.1\n" in text
    (folder.path / CONFIG).write_text(text.replace("lr = 0.1\n", f"{change}  # was 0.1\n"))
    with pytest.raises(RunFolderError, match="damaged or edited"):
        folder.config()


def test_missing_and_doubled_lines_are_found(folder):
    first, second, third = (folder.path / METRICS).read_text().splitlines(keepends=True)
    for lines in ([first, third], [first, first, second, third], [first, third, second], [first, second]):
        (folder.path / METRICS).write_text("".join(lines))
        with pytest.raises(RunFolderError, match="lost lines"):
            folder.resume()


@pytest.mark.parametrize("name", [METRICS, CHECKPOINT, VERSIONS])
def test_a_file_of_another_run_is_refused(folder, tmp_path, name):
    other = RunFolder.create(tmp_path / "other", resolve("fedpm-klms", profile="small", given={"seed": 7}))
    for number in (1, 2, 3):
        other.append(record(number), state(number))
    shutil.copy(other.path / name, folder.path / name)
    with pytest.raises(RunFolderError, match=r"damaged|lost lines"):
        folder.resume()


def test_a_full_disk_is_one_line_and_loses_nothing(folder):
    """A limit on the size of files fails like a full disk: in the middle of a write."""
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (len(before[METRICS]) + 20, len(before[METRICS]) + 200):  # fails in the line, in the checkpoint
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        try:
            with pytest.raises(RunFolderError, match=r"cannot be written \(File too large\).* is kept") as caught:
                folder.append(record(4), State(4, {"theta": np.zeros(1000)}))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(caught.value)
        assert {path.name for path in folder.path.iterdir()} == set(before)  # nothing partial is left
        assert folder.resume().round == 3
        assert (folder.path / METRICS).read_bytes() == before[METRICS]
        assert (folder.path / CHECKPOINT).read_bytes() == before[CHECKPOINT]


def test_a_folder_that_cannot_be_written_is_one_line(folder, tmp_path):
    """As root, nothing is read-only; a folder where a file should go fails the same way."""
    (folder.path / DESCRIPTION).mkdir()
    with pytest.raises(RunFolderError, match="cannot be written"):
        folder.describe(RunDescription(layers=[], split=[], tested=0))
    assert {path.name for path in folder.path.iterdir()} == {CONFIG, VERSIONS, METRICS, CHECKPOINT, DESCRIPTION}
    assert folder.state().round == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="cannot be created"):
        RunFolder.create(tmp_path / "file" / "run", resolve("fedavg"))


def test_a_resumed_run_removes_what_a_killed_one_was_writing(folder):
    """Otherwise, each kill could leave a file as large as a checkpoint."""
    before = set(folder.path.iterdir())
    with files.replacing(folder.path / TABLE):
        (left,) = set(folder.path.iterdir()) - before
    left.write_bytes(b"half a table")
    with folder.locked():
        assert set(folder.path.iterdir()) == before | {folder.path / LOCK, folder.path / TABLE}


@pytest.mark.parametrize("bounds", [[0], [5, 9], [0, 9, 4], [[0, 1]], [0.0, 9.0]])
def test_bounds_that_are_not_a_block_map_are_ignored(folder, bounds):
    folder.append(record(4), State(4, {"block_bounds": np.array(bounds)}))
    assert folder.checkpointed_blocks()[1] == []


def test_the_description(folder):
    described = RunDescription(layers=[Layer(name="a", size=3)], split=[[1, 2], [3, 4]], tested=7)
    folder.describe(described)
    assert folder.description() == described


@pytest.mark.parametrize(
    "content",
    [
        *(
            '{"layers": [3]}',
            "{1}",
            '{"layers": 3}',
            '{"split": [[1], [1, 2]]}',
            '{"split": [[], []]}',
            '{"split": [["x"]]}',
        ),
        *('{"split": [[-4]]}', '{"layers": [{"name": "a", "size": -1}]}', '{"split": [[1e999]]}'),
    ],
)
def test_a_description_that_makes_no_sense_is_empty(folder, content):
    folder.describe(RunDescription())
    key = key_of((folder.path / CONFIG).read_text().partition("\n")[2])
    (folder.path / DESCRIPTION).write_text(with_digest(content, key))
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
