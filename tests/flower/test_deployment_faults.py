"""An app with the two lines on real processes that fail: as docs/flower.md describes it."""

import json
import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from klms.flower.deployment import Deployment
from klms.flower.deployment.certificates import create_server_certificate
from klms.flower.deployment.commands import environment, free_ports, supernode
from klms.processes import Process

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs Linux: it looks into /proc"),
]

PROJECT = """
[project]
name = "twolines"
version = "1.0.0"
description = "Steps towards a target"
license = "Apache-2.0"

[tool.flwr.app]
publisher = "klms"

[tool.flwr.app.components]
serverapp = "twolines:server"
clientapp = "twolines:client"

[tool.flwr.app.config]
folder = ""
rounds = 3
seconds = 0.0
"""

APP = """
import json
import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from klms.flower import Compressed, compress

server = ServerApp()
client = ClientApp(mods=[compress()])


@server.main()
def main(grid, context):
    config = context.run_config
    folder = Path(config["folder"])
    start = np.load(folder / "model.npy") if (folder / "model.npy").exists() else np.zeros((150, 120), np.float32)

    def save(number, arrays):
        np.save(folder / "model.npy", arrays["w"].numpy())

    class Noting(Compressed):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            with (folder / "rounds").open("a") as lines:
                print(json.dumps(dict(metrics)), file=lines)
            return arrays, metrics

    strategy = Noting(FedAvg(fraction_evaluate=0.0), bits_per_parameter=2)
    initial = ArrayRecord({"w": Array(start)})
    strategy.start(grid, initial, num_rounds=config["rounds"], timeout=900, evaluate_fn=save)


@client.train()
def train(message, context):
    time.sleep(context.run_config["seconds"])
    before = message.content["arrays"]["w"].numpy()
    arrays = ArrayRecord({"w": Array((before + 0.5 * (1 - before)).astype(np.float32))})
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "twolines.py").write_text(APP)
    return folder


def rounds_in(folder: Path) -> list[dict[str, float]]:
    noted = folder / "rounds"
    return [json.loads(line) for line in noted.read_text().splitlines()] if noted.exists() else []


def test_a_node_that_is_killed_in_a_round_is_missing_from_it_and_returns_as_another(app, tmp_path):
    restarted = []
    with Deployment(tmp_path / "deployment", 3) as deployment:

        def in_round_2():
            if len(rounds_in(tmp_path)) == 1 and not restarted:
                restarted.append(deployment.restart("node-2"))

        run = deployment.submit(app, {"folder": str(tmp_path), "rounds": 5, "seconds": 5.0})
        status = deployment.wait(run, timeout=1800, on_tick=in_round_2)
        assert status == "finished:completed", deployment.why(run) + deployment.log("superlink")[-3000:]
    counted = [Counter(record) for record in rounds_in(tmp_path)]  # only what is not zero is there
    counts = [(record["klms-ok"], record["klms-missing"] + record["klms-error"]) for record in counted]
    print(counts)
    assert counts[0] == (3, 0)
    assert (2, 1) in counts[1:]  # what the killed node was asked for never came
    assert counts[-1][0] == 3  # it has a new id, and was led to the model of the others
    assert all(record["klms-uncompressed"] == record["klms-resyncs"] == 0 for record in counted)


def test_a_run_on_a_superlink_that_is_restarted_goes_on_from_the_saved_model(app, tmp_path):
    with Deployment(tmp_path / "deployment", 2) as deployment:
        first = deployment.submit(app, {"folder": str(tmp_path), "rounds": 50, "seconds": 1.0})
        while len(rounds_in(tmp_path)) < 2:
            assert not deployment.status(first).startswith("finished"), deployment.log("superlink")[-3000:]
            time.sleep(5)
        deployment.restart("superlink")
        for name in ("node-0", "node-1"):
            deployment.restart(name)
        done = len(rounds_in(tmp_path))
        run = deployment.submit(app, {"folder": str(tmp_path), "rounds": 2})
        assert deployment.wait(run, timeout=1800) == "finished:completed", deployment.log("superlink")[-3000:]
    records = rounds_in(tmp_path)
    assert len(records) == done + 2
    assert all(record["klms-ok"] == 2 for record in records)
    assert abs(float(np.load(tmp_path / "model.npy").mean()) - (1 - 0.5 ** len(records))) < 0.05


def test_a_node_that_trusts_another_certificate_never_joins(app, tmp_path):
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    authority = create_server_certificate(stranger).public
    with Deployment(tmp_path / "deployment", 2, secure=True) as deployment:
        key = tmp_path / "deployment" / "node-0" / "key"
        command = supernode(stranger, free_ports(1)[0], deployment.address, 2, 3, (authority, key))
        process = Process(command, stranger, environment(stranger / "home"), f"stranger-{os.getpid()}/")
        try:
            run = deployment.submit(app, {"folder": str(tmp_path), "rounds": 2})
            assert deployment.wait(run, timeout=1800) == "finished:completed", deployment.log("superlink")[-3000:]
            log = process.log()
        finally:
            process.kill()
    assert all(record["klms-ok"] == 2 for record in rounds_in(tmp_path))
    print(log[-2000:])
    assert "certificate" in log.lower()
