import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.engine.federation import Federation, participants
from klms.engine.ledger import LedgerRecord
from klms.engine.local import LocalClients, update
from klms.engine.rounds import one_round
from klms.errors import InvalidArgument, RunFolderError
from klms.runs import execution
from klms.runs.run_folder import CHECKPOINT, METRICS, RunFolder
from klms.runs.settings import resolve
from tests.support.small_data import write_mnist
from tests.support.waiting import wait_until

SETTINGS = {"images": 0, "clients": 5, "per_round": 3, "width": 0.2, "batch": 16, "bits": 5, "evaluate_every": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_mnist(tmp_path_factory.mktemp("mnist"))


def config(folder: Path, method: str = "fedpm-klms", rounds: int = 4, **given: object):
    return resolve(method, profile="small", given=SETTINGS | {"rounds": rounds, "data_dir": str(folder)} | given)


def ledger(path: Path) -> list[LedgerRecord]:
    """Return the records without times, which depend on the machine."""
    records = list(RunFolder(path).records())
    for record in records:
        assert set(record.seconds) >= {"train", "encode", "decode", "aggregate", "total"}
    return [record.model_copy(update={"seconds": {}}) for record in records]


def state_of(path: Path) -> bytes:
    return (path / CHECKPOINT).read_bytes()


def assert_workers_do_what_one_process_does(folder: Path, tmp_path: Path, method: str, workers: int) -> None:
    settings = config(folder, method, rounds=2)
    execution.start_or_resume(settings, tmp_path / "one", workers=1)
    execution.start_or_resume(settings, tmp_path / "two", workers=workers)
    assert ledger(tmp_path / "one") == ledger(tmp_path / "two")
    assert state_of(tmp_path / "one") == state_of(tmp_path / "two")


@pytest.mark.parametrize("method", ["fedpm-klms", "qsgd-klms", "sgld-klms", "topk"])
def test_workers_do_what_one_process_does(folder, tmp_path, method, workers):
    assert_workers_do_what_one_process_does(folder, tmp_path, method, workers)


def test_two_processes_do_what_one_does(folder, tmp_path):
    """With the method whose clients have memories, which travel to the processes and back."""
    assert_workers_do_what_one_process_does(folder, tmp_path, "topk", 2)


@pytest.mark.parametrize("method", ["sgld-klms", "topk"])
def test_an_interrupted_run_resumes_as_if_it_had_not_stopped(folder, tmp_path, method):
    """Langevin methods keep a posterior average, error feedback keeps the clients' memories."""
    settings = config(folder, method, rounds=6, burn_in=1, evaluate_every=1)
    execution.start_or_resume(settings, tmp_path / "whole")

    class Stop(Exception):
        pass

    for stop_after in (1, 4):
        path = tmp_path / f"stopped-{stop_after}"

        def interrupt(_, record, stop_after=stop_after):
            if record.round == stop_after:
                raise Stop

        with pytest.raises(Stop):
            execution.start_or_resume(settings, path, progress=interrupt)
        assert len(ledger(path)) == stop_after
        execution.start_or_resume(settings, path)
        assert ledger(path) == ledger(tmp_path / "whole")
        assert state_of(path) == state_of(tmp_path / "whole")


def test_a_killed_run_resumes_as_if_it_had_not_stopped(folder, tmp_path):
    """SIGKILL, whenever it comes: in the middle of a round, of a line, of a checkpoint."""
    settings = config(folder, rounds=8)
    execution.start_or_resume(settings, tmp_path / "whole")
    path = tmp_path / "killed"
    arguments = ["--rounds", "8", "--data-dir", str(folder)]
    for name, value in SETTINGS.items():
        arguments += [f"--{name.replace('_', '-')}", str(value)]
    command = [sys.executable, "-m", "klms", "run"]
    done = 8
    while done == 8:  # it was killed too late, which may happen when this process has to wait for a processor
        shutil.rmtree(path, ignore_errors=True)
        process = subprocess.Popen([*command, "fedpm-klms", "--profile", "small", "--out", str(path), *arguments])
        wait_until(lambda: len(list(RunFolder(path).records())) >= 2)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        done = len(list(RunFolder(path).records()))
    with (path / METRICS).open("a") as file:
        file.write('{"round": 99, "half a li')  # what a kill in the middle of a write leaves
    resumed = CliRunner().invoke(app, ["run", "--resume", str(path)])
    assert resumed.exit_code == 0, resumed.output
    assert ledger(path) == ledger(tmp_path / "whole")
    assert state_of(path) == state_of(tmp_path / "whole")


def test_a_finished_run_is_extended(folder, tmp_path):
    """It sends what a run sends that had as many rounds from the beginning."""
    execution.start_or_resume(config(folder, rounds=2), tmp_path / "longer")
    execution.start_or_resume(config(folder, rounds=4), tmp_path / "whole")
    path = tmp_path / "longer"
    command = ["run", "--resume", str(path)]
    finished = CliRunner().invoke(app, command)
    assert finished.exit_code == 0
    assert "the run is complete after 2 rounds; --rounds extends it" in finished.output
    extended = CliRunner().invoke(app, [*command, "--rounds", "4"])
    assert extended.exit_code == 0, extended.output
    assert "resuming after round 2" in extended.output
    assert ledger(path) == ledger(tmp_path / "whole")
    assert RunFolder(path).config() == config(folder, rounds=4)
    shorter = CliRunner().invoke(app, [*command, "--rounds", "3"])
    assert shorter.exit_code == 1
    assert "has 4 rounds already" in shorter.output


def test_bytes_are_those_of_the_messages(folder, tmp_path):
    settings = config(folder, rounds=2)
    summary = execution.start_or_resume(settings, tmp_path / "run")
    records = ledger(tmp_path / "run")
    d = RunFolder(tmp_path / "run").state().shared["theta"].size
    assert summary.uplink_bytes == sum(record.uplink_bytes for record in records)
    for record in records:
        assert record.bits_per_parameter == pytest.approx(8 * record.uplink_bytes / 3 / d)
        assert 0 < record.downlink_bytes < 3 * 4 * d  # messages are relayed, the state is not sent
        assert list(record.clients) == participants(settings, record.round)
        assert len(record.message_bytes) == len(record.clients)
        assert sum(record.message_bytes) == record.uplink_bytes
    assert 0 < summary.coding_share < 1
    assert "accuracy" in summary.metrics


def test_the_clients_of_a_round_are_drawn_without_repetition(folder):
    settings = config(folder)
    drawn = [participants(settings, number) for number in range(1, 101)]
    assert all(len(set(clients)) == 3 and set(clients) <= set(range(5)) for clients in drawn)
    assert len({tuple(clients) for clients in drawn}) == 10  # all choices of 3 out of 5
    assert drawn == [participants(settings, number) for number in range(1, 101)]


def test_a_folder_is_not_overwritten(folder, tmp_path):
    execution.start_or_resume(config(folder, rounds=1), tmp_path / "run")
    with pytest.raises(RunFolderError, match="--resume"):
        RunFolder.check_free(tmp_path / "run")
    with pytest.raises(RunFolderError, match="not the folder of a run"):
        RunFolder(tmp_path).config()
    versions = json.loads((tmp_path / "run" / "versions.json").read_text())
    assert {"klms", "python", "numpy", "torch"} <= set(versions)


def examples_per_class(folder: Path, path: Path, **given: object) -> np.ndarray:
    """Return the examples of every client (rows) by class (columns), as the run's folder describes them."""
    execution.start_or_resume(config(folder, "fedavg", rounds=1, **given), path)
    counts = np.array(RunFolder(path).description().split)
    assert counts.shape == (5, 10)
    return counts


def test_splits_are_used(folder, tmp_path):
    even = examples_per_class(folder, tmp_path / "iid", split="iid")
    assert even.sum() == 300
    assert (even > 0).sum(axis=1).min() >= 9
    few = examples_per_class(folder, tmp_path / "noniid", split="noniid", c_max=3)
    classes = (few > 0).sum(axis=1)
    assert classes.min() >= 1
    assert classes.max() <= 3
    skewed = examples_per_class(folder, tmp_path / "dirichlet", split="dirichlet", alpha=0.1)
    assert skewed.sum() == 300
    shares = skewed.max(axis=0) / skewed.sum(axis=0)
    assert shares.mean() > 0.6  # most examples of a class are at one of the five clients
    assert (even.max(axis=0) / even.sum(axis=0)).mean() < 0.4


def test_a_split_that_the_data_does_not_have(folder, tmp_path):
    with pytest.raises(InvalidArgument, match="no authors"):
        execution.start_or_resume(config(folder, rounds=1, split="natural"), tmp_path / "run")


def test_a_second_message_of_a_client_and_one_of_another_round_are_refused(folder):
    """Whatever a scheme's bytes say: the engine takes one message per client and round."""
    settings = config(folder, "fedavg", rounds=2, per_round=0)
    federation = Federation.create(settings)
    first = federation.method.init()

    def uploads(state):
        return [update(federation, state, client) for client in range(settings.clients)]

    refused: list[int] = []

    class Replaying(LocalClients):
        def run(self, broadcast, wanted):
            own = uploads(broadcast.state)
            old = uploads(first) if broadcast.state.round else []
            swapped = [replace(own[3], client=4)] if broadcast.state.round else []
            yield from [*own[:3], own[0], *old[3:4], *swapped]

        def refuse(self, client, error):
            refused.append(client)

    clients, state = Replaying(lambda *a: iter(())), first
    for _ in range(2):
        result = one_round(federation, settings, state, clients)
        state = result.state
        assert result.record.clients == (0, 1, 2)
    assert refused == [0, 0, 3, 4]
