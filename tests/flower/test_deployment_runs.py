"""Our apps on real processes: Flower's simulation, and a SuperLink whose nodes, apps and server fail."""

import os
import signal
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from klms.flower import client_app, server_app, template_app
from klms.flower.deployment import Deployment
from klms.flower.settings import ServerSettings
from klms.frame import Frame, Kind
from klms.runs import execution
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.flower.in_process import InProcessGrid, serve
from tests.support.small_data import write_mnist
from tests.support.waiting import FOREVER

FAULTY = """
from flwr.app import ConfigRecord
from klms.flower import client_app


def faulty(message, context, call_next):
    who = context.node_config["partition-id"]
    if message.metadata.message_type != "train":
        return call_next(message, context)
    if who == 1:
        raise RuntimeError("this client always fails")
    reply = call_next(message, context)
    record = reply.content["klms"]
    if who == 2:
        record["reply"] = b"garbage" * 100
    if who == 3:
        if "earlier" in context.state:
            record["reply"] = context.state["earlier"]["payload"]
        else:
            context.state["earlier"] = ConfigRecord({"payload": record["reply"]})
    return reply


app = client_app(mods=[faulty])
"""


def config_of(tmp_path: Path, **given):
    data = write_mnist(tmp_path / "data", train=200, test=50)
    common = {"rounds": 3, "evaluate_every": 1, "data_dir": data, "images": 0, "batch": 16, "width": 0.25}
    seeded = {"private_randomness": "seeded"}  # to compare with the local engine
    return resolve("fedpm-klms", profile="small", given=common | seeded | given)


def app_for(tmp_path: Path, config, **settings) -> tuple[Path, RunFolder]:
    folder = tmp_path / "run"
    own = ServerSettings(run_folder=str(folder), **settings)
    return template_app.create(tmp_path / "app", config, own), RunFolder(folder)


def states(*folders: Path) -> list[bytes]:
    return [RunFolder(folder).state().to_bytes() for folder in folders]


def test_flower_s_simulation_and_the_local_engine_give_the_same_bytes(tmp_path):
    config = config_of(tmp_path, clients=3)
    execution.start_or_resume(config, tmp_path / "local")
    app, folder = app_for(tmp_path, config, min_replies=3)
    with Deployment(tmp_path / "deployment", 3, simulated=True, timeout=FOREVER) as deployment:
        number = deployment.submit(app, {})
        status = deployment.wait(number, timeout=FOREVER)
        assert status == "finished:completed", deployment.log("superlink")[-3000:]
    ours, theirs = list(RunFolder(tmp_path / "local").records()), list(folder.records())
    assert [record.digest for record in ours] == [record.digest for record in theirs]
    assert len({record.digest for record in ours}) == config.rounds
    local, flower = states(tmp_path / "local", folder.path)
    assert local == flower


@pytest.mark.soak
def test_nodes_and_apps_fail_and_the_run_continues(tmp_path):
    config = config_of(tmp_path, clients=6, rounds=5)
    app, folder = app_for(tmp_path, config, round_timeout=300.0)
    (app / "klms_app" / "client_app.py").write_text(FAULTY)
    killed = []
    with Deployment(tmp_path / "deployment", 6) as deployment:

        def kill_one_in_round_2():
            if folder.rounds() == 1 and not killed:
                deployment.processes["node-0"].kill()
                killed.append(time.time())

        number = deployment.submit(app, {})
        status = deployment.wait(number, timeout=900, on_tick=kill_one_in_round_2)
        assert status == "finished:completed", deployment.log("superlink")[-3000:]
    records = list(folder.records())
    counts = [{word: n for word, n in record.replies.items() if n} for record in records]
    print(counts)
    assert counts[0] == {"ok": 4, "error": 1, "corrupt": 1}
    assert counts[2:] == [{"ok": 2, "error": 1, "corrupt": 1, "stale": 1, "missing": 1}] * 3
    assert [record.clients for record in records[2:]] == [(4, 5)] * 3
    assert [record.round for record in records] == [1, 2, 3, 4, 5]

    class OnlyThose:
        """Of an untroubled run, the replies that counted."""

        def __call__(self, node, reply):
            if reply.metadata.message_type != "train":
                return reply
            number = Frame.from_bytes(reply.content["klms"]["reply"], Kind.METHOD).first
            return reply if node - 1 in records[number - 1].clients else None

    own = ServerSettings(run_folder=str(tmp_path / "untroubled"))
    serve(server_app(config, own), InProcessGrid(client_app(config), 6, tamper=OnlyThose()))
    with_bad, without = states(folder.path, tmp_path / "untroubled")
    assert with_bad == without


def running(program: str, folder: Path) -> list[int]:
    """Return the living processes of a program, itself or with an interpreter, that work in the folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")[:2]
            here = (process / "cwd").readlink().is_relative_to(folder.resolve())
        except OSError:  # it has ended, or belongs to another user
            continue
        if here and program in (Path(os.fsdecode(word)).name for word in words):
            found.append(int(process.name))
    return found


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="needs Linux: it looks into /proc")
def test_a_server_that_is_killed_resumes_with_the_next_absolute_round(tmp_path):
    config = config_of(tmp_path, clients=2, rounds=4)
    execution.start_or_resume(config, tmp_path / "whole")
    app, folder = app_for(tmp_path, config)
    with Deployment(tmp_path / "deployment", 2) as deployment:
        first = deployment.submit(app, {})
        while folder.rounds() < 2:
            time.sleep(0.2)
        (server_app_process,) = running("flwr-serverapp", tmp_path)
        os.kill(server_app_process, signal.SIGKILL)
        before = list(folder.records())[:2]
        second = deployment.submit(app, {})
        assert deployment.wait(second, timeout=600) == "finished:completed", deployment.log("superlink")[-3000:]
        assert deployment.wait(first, timeout=120) == "finished:failed"
    assert list(folder.records())[:2] == before  # to the microsecond: these rounds were not run again
    assert [record.round for record in folder.records()] == [1, 2, 3, 4]
    whole, resumed = states(tmp_path / "whole", folder.path)
    assert whole == resumed


@pytest.mark.soak
@pytest.mark.parametrize("secure", [False, True])
def test_the_demo_trains_and_leaves_nothing_behind(tmp_path, secure):
    from klms.flower import demo

    rounds = list(demo.run(tmp_path, rounds=3, secure=secure))
    assert [done.record.round for done in rounds] == [1, 2, 3]
    assert all(len(done.record.clients) == 3 for done in rounds)
    assert rounds[-1].record.accuracy > 0.5
    assert all(done.wire.up > done.record.payload_bytes for done in rounds)
    assert all(done.wire.down > done.record.downlink_bytes > 0 for done in rounds)
