import multiprocessing
import re

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.engine.federation import Federation
from klms.engine.ledger import LedgerRecord
from klms.errors import DataError, RunFolderError
from klms.runs import execution
from klms.runs.execution import Summary
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.support.small_data import write_mnist


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    mnist = write_mnist(tmp_path_factory.mktemp("mnist"), train=60, test=20)
    settings = {"clients": 2, "rounds": 3, "width": 0.2, "batch": 32, "images": 0, "data_dir": str(mnist)}
    return resolve("fedavg", profile="small", given=settings)


def test_a_summary_leaves_skipped_rounds_out_of_the_bitrate():
    seconds = {"train": 6.0, "encode": 1.0, "decode": 0.5, "aggregate": 0.5, "evaluate": 9.0, "total": 10.0}
    records = [
        LedgerRecord(round=1, uplink_bytes=30, downlink_bytes=7, bits_per_parameter=3.0, accuracy=0.5, nll=1.0),
        LedgerRecord(round=2, uplink_bytes=0, downlink_bytes=7, bits_per_parameter=0.0, passed_over=1.0),
        LedgerRecord(round=3, uplink_bytes=10, downlink_bytes=7, bits_per_parameter=1.0, seconds=seconds),
    ]
    summary = Summary.of("fedpm", records)
    # Both rounds that count are of 80 parameters, over all clients: 640 bytes up and down in float32 each.
    sent = (40, 21, 61, 32 / 2.0, 2 * 640 / 61)
    assert summary == Summary("fedpm", 3, {"accuracy": 0.5, "nll": 1.0}, 2.0, *sent, 1.5 / 8, 10.0)
    assert Summary.of("fedpm", []) == Summary("fedpm", 0, {}, 0.0, 0, 0, 0, None, None, None, 0.0)


def test_times_smaller_compares_with_float32_of_every_client_and_round(config, tmp_path):
    config = config.model_copy(update={"downlink": "snapshot"})
    federation = Federation.create(config)
    summary = execution.serve(federation, config, tmp_path / "run", execution.local_engine(1))
    float32 = 4 * federation.method.layout.d * 2 * 3  # one way: two clients, three rounds
    assert summary.times_smaller_up == pytest.approx(float32 / summary.uplink_bytes)
    assert summary.times_smaller_total == pytest.approx(2 * float32 / summary.total_bytes)
    assert 6 / 5 < summary.times_smaller_total < 1.3  # the first broadcast is next to nothing, the others are packed


def test_a_run_without_a_folder_does_the_same(config, tmp_path):
    in_folder = execution.start_or_resume(config, tmp_path / "run")
    state, records = execution.execute(Federation.create(config), config, execution.local_engine(1))
    folder = RunFolder(tmp_path / "run")
    assert [one.digest for one in records] == [one.digest for one in folder.records()]
    assert state.to_bytes() == folder.state().to_bytes()
    assert Summary.of("fedavg", records).metrics == in_folder.metrics


def test_a_complete_run_is_resumed_without_rounds(config, tmp_path):
    first = execution.start_or_resume(config, tmp_path / "run")
    again = execution.start_or_resume(config, tmp_path / "run", progress=lambda _, record: pytest.fail(str(record)))
    assert again == first


def test_a_run_ends_early_at_the_accuracy_that_suffices_and_so_do_its_workers(config, tmp_path):
    config = config.model_copy(update={"evaluate_every": 1})
    whole = execution.execute(Federation.create(config), config, execution.local_engine(1))[1]
    enough = config.model_copy(update={"stop_at": whole[0].accuracy})
    before = set(multiprocessing.active_children())
    execution.start_or_resume(enough, tmp_path / "run", workers=2)
    assert set(multiprocessing.active_children()) <= before
    folder = RunFolder(tmp_path / "run")
    assert [record.digest for record in folder.records()] == [whole[0].digest]
    assert folder.complete()
    execution.start_or_resume(enough, tmp_path / "run", progress=lambda _, record: pytest.fail(str(record)))


def test_a_server_refuses_a_folder_with_other_settings(config, tmp_path):
    federation, engine = Federation.create(config), execution.local_engine(1)
    execution.serve(federation, config, tmp_path / "run", engine)
    other = config.model_copy(update={"lr": 0.5})
    with pytest.raises(RunFolderError, match=r"other settings \(lr\)"):
        execution.serve(federation, other, tmp_path / "run", engine)


def test_a_folder_in_use_is_not_resumed(config, tmp_path):
    execution.start_or_resume(config, tmp_path / "run")
    with RunFolder(tmp_path / "run").locked(), pytest.raises(RunFolderError, match="another process"):
        execution.start_or_resume(config, tmp_path / "run")


def test_a_failure_at_the_start_leaves_no_folder(tmp_path):
    with pytest.raises(DataError):
        execution.start_or_resume(resolve("fedavg", given={"data": "mnits"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_command_shows_bytes_up_down_and_in_total(config, tmp_path):
    given = {"rounds": 2, "width": 0.2, "clients": 2, "data-dir": config.data_dir, "out": tmp_path / "run"}
    options = [f"--{name}={value}" for name, value in given.items()]
    shown = CliRunner().invoke(app, ["run", "fedpm-klms", *options], catch_exceptions=False)
    first, second = RunFolder(tmp_path / "run").records()
    up, down = first.uplink_bytes + second.uplink_bytes, first.downlink_bytes + second.downlink_bytes
    line = re.search("MB: (.*) up, (.*) down, (.*) total", shown.output.partition("round 2/2")[2])
    megabytes = [f"{count / 1e6:,.3f}" for count in (up, down, up + down)]
    assert list(line.groups()) == megabytes
    rows = dict(re.findall(r"│ (.+?) +│ +(\S+) │", shown.output))
    assert [rows[f"MB {way}"] for way in ("up", "down", "total")] == megabytes
    d = sum(layer.size for layer in RunFolder(tmp_path / "run").description().layers)
    assert rows["up: x smaller than float32 up"] == f"{32 / ((8 * up) / (4 * d)):,.1f}"
    assert rows["total: x smaller than float32 both ways"] == f"{8 * d * 4 / (up + down):,.1f}"
