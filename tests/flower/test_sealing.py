"""With client secrets, only the server reads what a client sends."""

import pytest

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from klms.errors import CorruptMessage, InvalidArgument
from klms.exchange.request import RequestBody
from klms.exchange.sealing import OVERHEAD, ServerKey
from klms.flower import Compressed, client_app, compress, server_app
from klms.flower.settings import ServerSettings
from klms.frame import Frame, Kind
from klms.runs.run_folder import RunFolder
from klms.runs.settings import resolve
from tests.flower.in_process import InProcessGrid, serve
from tests.flower.test_compressed import counts, distance, run, stock_client
from tests.flower.test_downlink import held_out, network, points


def payloads(grid) -> list[bytes]:
    records = [reply.content.config_records.get("klms") for reply in grid.received if reply.has_content()]
    return [record["reply"] for record in records if record is not None]


def keys_in(grid) -> set[str]:
    """The public keys that requests which repeat all terms tell clients."""
    records = [message.content.config_records["klms"]["request"] for message in grid.sent]
    bodies = [RequestBody.from_bytes(Frame.from_bytes(data, Kind.REQUEST).body) for data in records]
    return {body.terms["server"] for body in bodies if body.whole}


def test_a_fellow_client_cannot_read_an_update_of_compressed():
    """It knows the seed, the model and the request, and what it reads without secrets, it does not with them."""
    plain, secret = (InProcessGrid(stock_client(compress()), 3) for _ in range(2))
    run(Compressed(FedAvg(), bits_per_parameter=1.0), plain, rounds=2)
    result = run(Compressed(FedAvg(), bits_per_parameter=1.0, client_secrets=True), secret, rounds=10)
    assert all(Frame.from_bytes(payload, Kind.REPLY) for payload in payloads(plain))
    for payload in payloads(secret):
        with pytest.raises(CorruptMessage):
            Frame.from_bytes(payload, Kind.REPLY)
        with pytest.raises(CorruptMessage):
            ServerKey().open(payload)
    assert {len(key) for key in keys_in(secret)} == {64}
    assert counts(result) == {"ok": 3}
    assert distance(result) < 0.1
    for metrics in result.train_metrics_clientapp.values():
        assert 0.75 < metrics["klms-bits-per-parameter"] <= 1.02  # the seal is counted


def test_an_update_that_is_not_sealed_does_not_count():
    apps = {True: stock_client(compress()), False: stock_client(sees=("arrays", "config", "klms"))}

    class Mixed(InProcessGrid):
        def send_and_receive(self, messages, *, timeout=None):
            replies = []
            for message in messages:
                self.app = apps[message.metadata.dst_node_id > 1]
                replies += super().send_and_receive([message], timeout=timeout)
            return replies

    result = run(Compressed(FedAvg(), client_secrets=True, down=32), Mixed(apps[True], 3), rounds=1)
    assert counts(result) == {"ok": 2, "mismatch": 1}


def test_a_payload_of_another_client_does_not_count():
    seen = []

    def swap(node, reply):
        record = reply.content.config_records.get("klms")
        if record is not None:
            seen.append(record["reply"])
            kept = {name: r for name, r in reply.content.items() if name != "klms"}
            reply.content = RecordDict({**kept, "klms": ConfigRecord({**record, "reply": seen[0]})})
        return reply

    grid = InProcessGrid(stock_client(compress()), 3, tamper=swap)
    assert counts(run(Compressed(FedAvg(), client_secrets=True), grid, rounds=1)) == {"ok": 1, "mismatch": 2}


def own(mode: str, folder, **settings):
    given = {"clients": 3, "rounds": 2, "epochs": 1, "batch": 20, "evaluate_every": 1, "data": "own", "model": "own"}
    given |= {"downlink": mode, "private_randomness": "seeded"}
    config = resolve("fedpm-klms", profile="small", given=given)
    grid = InProcessGrid(client_app(config, model=network, data=points), 3)
    app = server_app(config, ServerSettings(run_folder=str(folder), **settings), model=network, test=held_out)
    serve(app, grid)
    return grid, list(RunFolder(folder).records())


@pytest.mark.parametrize("mode", ["snapshot", "coded"])
def test_our_methods_seal_their_messages_and_train_as_ever(mode, tmp_path):
    plain, open_records = own(mode, tmp_path / "plain")
    secret, records = own(mode, tmp_path / "secret", client_secrets=True)
    assert [record.digest for record in records] == [record.digest for record in open_records]
    assert all(record.replies["ok"] == 3 for record in records)
    assert all(record.kl_by_layer is None for record in records)  # clients would have to tell it in the clear
    assert [len(a) + OVERHEAD for a in payloads(plain)] == [len(b) for b in payloads(secret)]
    for payload in payloads(secret):
        with pytest.raises(CorruptMessage):
            Frame.from_bytes(payload, Kind.METHOD)


def test_a_downlink_that_shows_messages_to_all_is_refused(tmp_path):
    with pytest.raises(InvalidArgument, match="snapshot or coded"):
        own("auto", tmp_path / "run", client_secrets=True)
    assert not (tmp_path / "run").exists()
