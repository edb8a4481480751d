import json
import subprocess
import sys

import pytest

from klms.report import collect as reading
from klms.report.collect import collect
from tests.report.folders import gallery, line, write_run


def test_the_files_are_those_of_a_run_folder():
    run_folder = pytest.importorskip("klms.experiments.run_folder")
    names = (run_folder.CONFIG, run_folder.METRICS, run_folder.CHECKPOINT)
    assert names == (reading.CONFIG, reading.METRICS, reading.CHECKPOINT)


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    gallery(tmp_path)
    runs, skipped = collect([tmp_path, tmp_path / "fedpm-0", tmp_path / "deeper"])
    assert [run.name for run in runs] == ["deeper/still/qsgd", "fedpm-0", "fedpm-1", "klms-0", "klms-1"]
    assert skipped == []


def test_a_run_folder_itself_is_a_place(tmp_path):
    runs, _ = collect([write_run(tmp_path / "alone", bounds=[0, 4, 9], facts=True)])
    (run,) = runs
    assert (run.name, run.method, run.seed, run.rounds, run.finished) == ("alone", "fedpm", "0", 3, True)
    assert run.bounds == [0, 4, 9]
    assert [(layer.name, layer.size) for layer in run.layers] == [("conv.weight", 60), ("fc.weight", 40)]
    assert run.split[3] == [8, 1]


def test_a_run_under_way_has_the_lines_that_are_whole(tmp_path):
    folder = write_run(tmp_path / "going", rounds=9, lines=[line(1, 0.5), line(2)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accura')
    runs, skipped = collect([tmp_path])
    assert [record["round"] for record in runs[0].records] == [1, 2]
    assert not runs[0].finished
    assert skipped == []


@pytest.mark.parametrize("bad", ["[1, 2]", "garbage", '{"round": 7}', '{"round": 2}', "[" * 100_000, "NaN"])
def test_a_damaged_line_ends_the_run_and_is_told(tmp_path, bad):
    folder = write_run(tmp_path / "hurt")
    first, _, third = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([first, bad, third, ""]))
    runs, skipped = collect([tmp_path])
    assert len(runs[0].records) == 1
    assert "line 2" in skipped[0].why


def test_folders_that_cannot_be_read_are_told(tmp_path):
    write_run(tmp_path / "a-good")
    (write_run(tmp_path / "b-toml") / "config.toml").write_text("method = ")
    (write_run(tmp_path / "c-none") / "config.toml").write_text("rounds = 3")
    (write_run(tmp_path / "d-new") / "metrics.jsonl").unlink()
    (write_run(tmp_path / "e-empty") / "metrics.jsonl").write_text("")
    (write_run(tmp_path / "f-bytes") / "metrics.jsonl").write_bytes(b"\xff\x00\xfe\n\x80")
    runs, skipped = collect([tmp_path, tmp_path / "missing"])
    assert [run.name for run in runs] == ["a-good"]
    assert {one.name[:1]: one.why.split("(")[0].strip() for one in skipped} == {
        "b": "config.toml is not TOML: Invalid value",
        "c": "config.toml names no method",
        "d": "there is no metrics.jsonl yet",
        "e": "no round is done yet",
        "f": "line 1 of metrics.jsonl is damaged",
        "m": "there is no such folder",
    }


@pytest.mark.parametrize(
    "facts",
    [
        "",
        "[]",
        "{",
        '{"layers": 3}',
        '{"split": [[1], [1, 2]]}',
        '{"split": [[], []]}',
        '{"split": [["x"]]}',
        '{"split": [[-4]]}',
        '{"layers": [{"name": "a", "size": -1}]}',
        '{"split": [[1e999]]}',
    ],
)
def test_what_makes_no_sense_beside_the_ledger_is_not_there(tmp_path, facts):
    folder = write_run(tmp_path / "run")
    (folder / "run.json").write_text(facts)
    (folder / "checkpoint.npz").write_bytes(b"PK\x03\x04 half a checkpoint")
    (run,), _ = collect([tmp_path])
    assert (run.layers, run.split, run.bounds) == ([], [], [])


@pytest.mark.parametrize("bounds", [[0], [5, 9], [0, 9, 4], [[0, 1]], [0.0, float("nan")]])
def test_block_bounds_that_are_none(tmp_path, bounds):
    (run,), _ = collect([write_run(tmp_path / "run", bounds=bounds)])
    assert run.bounds == []


def test_numbers_are_finite_and_texts_are_lines():
    assert reading.number(3) == 3.0
    assert all(reading.number(bad) is None for bad in (float("nan"), float("inf"), "3", None, True, 10**400))
    assert reading.text("a\nb\x1b[0m") == "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}[0m"
    assert len(reading.text("x" * 10_000)) == reading.LONGEST_TEXT


def test_reading_needs_no_torch(tmp_path):
    gallery(tmp_path)
    program = (
        "import sys, pathlib; from klms.report.document import make, as_json; from klms.report import page;"
        f"report = make([pathlib.Path({json.dumps(str(tmp_path))})]); page.render(as_json(report));"
        "assert report.runs == 5; assert not {'torch', 'pydantic', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
