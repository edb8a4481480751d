"""What clients say of their failures is logged on one line, without what a terminal would obey."""

import logging
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message, RecordDict

from klms.errors import CorruptMessage
from klms.exchange.server import Server
from klms.flower.phase import Phase, Run
from klms.flower.server import FlowerClients
from klms.flower.settings import ServerSettings
from tests.flower.in_process import InProcessGrid

HOSTILE = "\x1b[2J\nINFO : all is well\ud800"
SHOWN = r"\x1b[2J\nINFO : all is well\ud800"


def fails(message, context):
    raise RuntimeError(HOSTILE)


@pytest.fixture
def logged(caplog):
    with caplog.at_level(logging.WARNING, "flwr"):
        yield caplog
    lines = [record.getMessage() for record in caplog.get_records("call")]
    assert lines
    assert all(SHOWN in line and line.isprintable() for line in lines)


def test_a_client_of_our_methods_that_fails(logged):
    clients = FlowerClients(InProcessGrid(fails, 1), ServerSettings(), layers=1, round=0, nodes={0: 1}, waited_for={0})
    broadcast = SimpleNamespace(
        downlink=SimpleNamespace(method=SimpleNamespace(seed=1)),
        message=lambda client: b"",
        snapshot=lambda: b"",
        sender=SimpleNamespace(digest=b""),
    )
    assert list(clients.run(broadcast, [(0, None)])) == []


def test_a_node_that_does_not_say_which_client_it_is(logged):
    FlowerClients(InProcessGrid(fails, 1), ServerSettings(), layers=1, round=0)._identify([1], {1})


def test_a_reply_of_our_methods_that_does_not_count(logged):
    FlowerClients(InProcessGrid(fails, 1), ServerSettings(), layers=1, round=0).refuse(3, CorruptMessage(HOSTILE))


def test_a_reply_of_any_app_that_does_not_count(logged):
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    reply = Message(Error(1, ""), reply_to=asked)
    Phase(Server(), Run(), InProcessGrid(fails, 1), 1.0, None).refuse(reply, CorruptMessage(HOSTILE))
