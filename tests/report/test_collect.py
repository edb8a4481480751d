import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from klms.engine.ledger import LedgerRecord
from klms.methods.state import State
from klms.report.collect import LONGEST_TEXT, collect, text
from klms.runs.run_folder import RunDescription, RunFolder
from klms.runs.settings import resolve
from tests.report.folders import gallery, line, write_description, write_run, write_settings


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    gallery(tmp_path)
    names = ["deeper/still/qsgd", "fedpm-0", "fedpm-1", "klms-0", "klms-1"]
    assert [run.name for run in collect([tmp_path]).runs] == names
    found = collect([tmp_path, tmp_path / "fedpm-0", tmp_path / "deeper"])
    assert [run.name for run in found.runs] == [str(tmp_path / name) for name in names]
    assert found.left_out == []


def test_a_run_folder_itself_is_a_place(tmp_path):
    (run,) = collect([write_run(tmp_path / "alone", bounds=[0, 4, 9], described=True)]).runs
    assert (run.name, run.method, run.seed, run.rounds, run.finished) == ("alone", "fedpm", "0", 3, True)
    assert run.bounds == [0, 4, 9]
    assert [(layer.name, layer.size) for layer in run.description.layers] == [("conv.weight", 60), ("fc.weight", 40)]
    assert run.description.split[3] == (8, 1)


def test_a_run_under_way_has_the_lines_that_are_whole(tmp_path):
    folder = write_run(tmp_path / "going", rounds=9, lines=[line(1, 0.5), line(2)])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accura')
    found = collect([tmp_path])
    (run,) = found.runs
    assert [record.round for record in run.records] == [1, 2]
    assert not run.finished
    assert found.left_out == found.incomplete == []


@pytest.mark.parametrize("bad", ["[1, 2]", "garbage", '{"round": 7}', '{"round": 2}', "[" * 100_000, "NaN"])
def test_a_damaged_line_ends_the_run_and_is_reported(tmp_path, bad):
    folder = write_run(tmp_path / "hurt")
    first, _, third = (folder / "metrics.jsonl").read_text().splitlines()
    (folder / "metrics.jsonl").write_text("\n".join([first, bad, third, ""]))
    found = collect([tmp_path])
    assert len(found.runs[0].records) == 1
    assert found.left_out == []
    (remark,) = found.incomplete
    assert remark.name == "hurt"
    assert "line 2" in remark.why


def test_an_end_that_is_lost_is_told_from_a_line_that_is_being_written(tmp_path):
    folder = write_run(tmp_path / "hurt", bounds=[0, 10, 45])  # with the checkpoint of round 3
    whole = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(whole[:-1] + b"J")  # one bit of the line end
    found = collect([tmp_path])
    assert [record.round for record in found.runs[0].records] == [1, 2]
    assert found.runs[0].bounds == []
    (remark,) = found.incomplete
    assert "metrics.jsonl has lost its end: the checkpoint is of round 3" in remark.why


def test_folders_that_cannot_be_read_are_left_out(tmp_path):
    write_run(tmp_path / "a-good")
    write_settings(write_run(tmp_path / "b-toml"), "method = ")
    write_settings(write_run(tmp_path / "c-none"), "rounds = 3")
    (write_run(tmp_path / "d-new") / "metrics.jsonl").unlink()
    (write_run(tmp_path / "e-empty") / "metrics.jsonl").write_text("")
    (write_run(tmp_path / "f-bytes") / "metrics.jsonl").write_bytes(b"\xff\x00\xfe\n\x80")
    write_run(tmp_path / "g-huge", lines=[line(1, bytes_up=10**400)])
    write_settings(write_run(tmp_path / "h-digits"), "method = 'fedpm'\nseed = 1" + 5000 * "0")
    found = collect([tmp_path, tmp_path / "missing"])
    assert [Path(run.name).name for run in found.runs] == ["a-good"]
    assert found.incomplete == []
    reasons = {Path(remark.name).name[:1]: remark.why.split("(")[0].strip() for remark in found.left_out}
    assert {"g", "h"} <= set(reasons)
    assert {name: why for name, why in reasons.items() if name < "g" or name == "m"} == {
        "b": "config.toml is not TOML: Invalid value",
        "c": "config.toml names no method",
        "d": "there is no metrics.jsonl yet",
        "e": "no round is done yet",
        "f": "line 1 of metrics.jsonl is damaged",
        "m": "there is no such folder",
    }


def test_other_files_may_be_damaged(tmp_path):
    folder = write_run(tmp_path / "run")
    write_description(folder, {"layers": 3})
    (folder / "checkpoint.klms").write_bytes(b"KX\x01 half a checkpoint")
    found = collect([tmp_path])
    assert [(run.description, run.bounds) for run in found.runs] == [(RunDescription(), [])]
    assert "checkpoint.klms is damaged" in found.incomplete[0].why


def test_a_digest_that_does_not_match_costs_its_own_folder_only(tmp_path):
    for name in ("a", "b", "c"):
        folder = RunFolder.create(tmp_path / name, resolve("fedavg"))
        folder.append(LedgerRecord(round=1, uplink_bytes=1, bits_per_parameter=1.0), State(1))
    for path in (tmp_path / "a" / "config.toml", tmp_path / "b" / "metrics.jsonl"):
        path.write_text(path.read_text().replace("0", "1"))
    found = collect([tmp_path])
    assert [run.name for run in found.runs] == ["c"]
    assert {remark.name: remark.why[:40] for remark in found.left_out} == {
        "a": "config.toml: the digest does not match: ",
        "b": "line 1 of metrics.jsonl is damaged (its ",
    }


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    write_run(tmp_path / "a")
    (tmp_path / "locked").mkdir()
    listed = os.scandir

    def scandir(path):
        if os.fspath(path).endswith("locked"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = collect([tmp_path])
    assert [run.name for run in found.runs] == ["a"]
    assert [(remark.name, remark.why) for remark in found.left_out] == [(str(tmp_path / "locked"), "Permission denied")]


def test_folders_of_the_same_name_are_told_apart(tmp_path):
    write_run(tmp_path / "one" / "a")
    write_run(tmp_path / "two" / "a", "qsgd")
    runs = collect([tmp_path / "one", tmp_path / "two"]).runs
    assert [run.name for run in runs] == [str(tmp_path / "one" / "a"), str(tmp_path / "two" / "a")]


def test_texts_are_single_lines_of_limited_length():
    assert text("a\nb\x1b[0m") == r"a\nb\x1b[0m"
    assert len(text("x" * 10_000)) == LONGEST_TEXT
    assert text("x" * 10_000 + "end").endswith("xend")


def test_reading_needs_no_torch(tmp_path):
    gallery(tmp_path)
    program = (
        "import sys, pathlib; from klms.report.document import make, as_json; from klms.report import page;"
        f"report = make([pathlib.Path({json.dumps(str(tmp_path))})]); page.render(as_json(report));"
        "assert len(report.runs) == 5; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
