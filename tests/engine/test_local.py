import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from klms.experiments import run as running
from klms.experiments.run_folder import CHECKPOINT, METRICS, RunFolder
from klms.experiments.settings import SettingsError, resolve
from tests.small_data import write_mnist

SETTINGS = {"images": 0, "clients": 5, "per_round": 3, "width": 0.2, "batch": 16, "bits": 5, "evaluate_every": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def config(folder: Path, method: str = "fedpm-klms", rounds: int = 4, **given: object):
    return resolve(method, profile="small", given=SETTINGS | {"rounds": rounds, "data_dir": str(folder)} | given)


def ledger(path: Path) -> list[dict]:
    """Without times, which are the machine's."""
    records = list(RunFolder(path).records())
    for record in records:
        assert set(record.pop("seconds")) >= {"train", "encode", "decode", "aggregate", "total"}
    return records


def state_of(path: Path) -> bytes:
    return (path / CHECKPOINT).read_bytes()


@pytest.mark.parametrize("method", ["fedpm-klms", "qsgd-klms", "sgld-klms", "topk"])
def test_two_workers_do_what_one_does(folder, tmp_path, method):
    settings = config(folder, method, rounds=2)
    running.start(settings, tmp_path / "one", workers=1)
    running.start(settings, tmp_path / "two", workers=2)
    assert ledger(tmp_path / "one") == ledger(tmp_path / "two")
    assert state_of(tmp_path / "one") == state_of(tmp_path / "two")


@pytest.mark.parametrize("method", ["sgld-klms", "topk"])
def test_a_run_that_stopped_goes_on_as_if_it_had_not(folder, tmp_path, method):
    """Langevin methods keep a posterior average, error feedback keeps the clients' memories."""
    settings = config(folder, method, rounds=6, burn_in=1, evaluate_every=1)
    running.start(settings, tmp_path / "whole")

    class Stop(Exception):
        pass

    for stop_after in (1, 4):
        path = tmp_path / f"stopped-{stop_after}"

        def interrupt(_, record, stop_after=stop_after):
            if record["round"] == stop_after:
                raise Stop

        with pytest.raises(Stop):
            running.start(settings, path, progress=interrupt)
        assert len(ledger(path)) == stop_after
        running.resume(path)
        assert ledger(path) == ledger(tmp_path / "whole")
        assert state_of(path) == state_of(tmp_path / "whole")


def test_a_killed_run_goes_on_as_if_it_had_not(folder, tmp_path):
    """SIGKILL, whenever it comes: in the middle of a round, of a line, of a checkpoint."""
    settings = config(folder, rounds=8)
    running.start(settings, tmp_path / "whole")
    path = tmp_path / "killed"
    arguments = ["--rounds", "8", "--data-dir", str(folder)]
    for name, value in SETTINGS.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    command = [sys.executable, "-m", "klms", "run"]
    process = subprocess.Popen([*command, "fedpm-klms", "--profile", "small", "--out", str(path), *arguments])
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(RunFolder(path).records())) < 2:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = len(list(RunFolder(path).records()))
    assert 2 <= done < 8
    with (path / METRICS).open("a") as file:
        file.write('{"round": 99, "half a li')  # what a kill in the middle of a write leaves
    subprocess.run([*command, "--resume", str(path)], check=True, timeout=120)
    assert ledger(path) == ledger(tmp_path / "whole")
    assert state_of(path) == state_of(tmp_path / "whole")


def test_bytes_are_those_of_the_messages(folder, tmp_path):
    summary = running.start(config(folder, rounds=2), tmp_path / "run")
    records = ledger(tmp_path / "run")
    d = RunFolder(tmp_path / "run").state().shared["theta"].size
    assert summary.uplink_bytes == sum(r["uplink_bytes"] for r in records)
    for record in records:
        assert record["bits_per_parameter"] == pytest.approx(8 * record["uplink_bytes"] / 3 / d)
        assert record["downlink_bytes"] > 3 * 4 * d
        assert len(record["clients"]) == 3
    assert records[0]["clients"] != records[1]["clients"] or len(set(records[0]["clients"])) == 3
    assert 0 < summary.encode_share < 1
    assert "accuracy" in summary.metrics


def test_a_folder_is_not_overwritten(folder, tmp_path):
    running.start(config(folder, rounds=1), tmp_path / "run")
    with pytest.raises(SettingsError, match="--resume"):
        running.start(config(folder, rounds=1), tmp_path / "run")
    with pytest.raises(SettingsError, match="not the folder of a run"):
        running.resume(tmp_path)
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert {"klms", "python", "numpy", "torch"} <= set(versions)


@pytest.mark.parametrize("split", ["noniid", "dirichlet"])
def test_splits_are_used(folder, tmp_path, split):
    running.start(config(folder, rounds=1, split=split, c_max=3), tmp_path / "run")
    assert len(ledger(tmp_path / "run")) == 1


def test_a_split_that_the_data_does_not_have(folder, tmp_path):
    with pytest.raises(ValueError, match="no authors"):
        running.start(config(folder, rounds=1, split="natural"), tmp_path / "run")
