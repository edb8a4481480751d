"""The client's line: `ClientApp(mods=[klms.flower.compress()])`."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message, RecordDict

from klms.container import Array as NumPyArray
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync
from klms.exchange.client import Client
from klms.flower import records
from klms.flower.records import ARRAYS, MODEL, RECORD, REPLY, REQUEST, Places, arrays_of, keep, kept, places_of
from klms.printable import printable

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable, Mod  # older releases have them elsewhere

log = logging.getLogger("flwr")
_STATE = "klms.state"
"""Name of the record in a node's context that keeps the state of its client."""


def compress(*called: object, threads: int = 1, seed: int | None = None) -> "Mod":
    """Return a mod that replaces the trained arrays with an encoded update, as the server requests.

    Put this mod first, so that other mods change the arrays (clipping, noise) before they are encoded. It acts only on
    messages of a server that uses `Compressed`; every other message passes unchanged. It keeps the model of the last
    round in the node's context, so that the server need send only what is new. `threads` is the number of threads of
    the codec. With a `seed`, the private randomness that some schemes need is reproducible.
    """
    if called:
        raise InvalidArgument("compress makes a mod and is not one itself: write mods=[compress()]")

    def mod(message: Message, context: Context, call_next: "ClientAppCallable") -> Message:
        asked = message.content.config_records.get(RECORD)
        if asked is None:
            return call_next(message, context)
        client = Client(kept(context, _STATE), threads=threads, seed=seed)
        try:
            places = _received(message, asked, client)
        except OutOfSync as lost:
            log.warning("klms: %s; the server is asked for the whole model", printable(lost))
            return Message(RecordDict({RECORD: ConfigRecord({REPLY: lost.reply})}), reply_to=message)
        keep(context, _STATE, client.state)
        reply = call_next(message, context)
        if _STATE not in context.state:  # the app has replaced the state, or cleared it
            keep(context, _STATE, client.state)
        if reply.has_error():
            return reply
        replaced, trained = _compressible(reply.content, places, client)
        payload = client.reply(trained)
        if client.error_feedback:
            keep(context, _STATE, client.state)
        others = {name: record for name, record in reply.content.items() if name not in replaced}
        record = ConfigRecord({REPLY: payload, **({ARRAYS: replaced} if replaced else {})})
        reply.content = RecordDict({**others, RECORD: record})
        return reply

    return mod


def _received(message: Message, asked: ConfigRecord, client: Client) -> Places:
    """Replace a request with the arrays that it leads to, and return the places of all arrays."""
    request, model = asked.get(REQUEST), asked.get(MODEL, "")
    content = message.content
    if not isinstance(request, bytes) or not isinstance(model, str) or (model and model in content):
        raise CorruptMessage("the record of klms holds no request, or does not name the record that it stands for")
    others = {name: arrays_of(record) for name, record in content.array_records.items()}
    beside = {
        name: others[record][own]
        for name, (record, own) in places_of({**others, **({model: {}} if model else {})}, model).items()
    }
    arrays = client.receive(request, beside)
    own = {name: array for name, array in arrays.items() if name not in beside}
    restored = {model if name == RECORD else name: one for name, one in content.items() if name != RECORD or model}
    if model:
        restored[model] = records.record_of(own)
    message.content = RecordDict(restored)
    return places_of({name: dict(record) for name, record in message.content.array_records.items()}, model)


def _compressible(reply: RecordDict, places: Places, client: Client) -> tuple[list[str], Mapping[str, NumPyArray]]:
    """Return the names of the reply's records that klms can compress, and their arrays; others pass unchanged."""
    names: list[str] = []
    trained: dict[str, NumPyArray] = {}
    received = dict.fromkeys(record for record, _ in places.values())
    for record, answer in records.answers(received, reply.array_records).items():
        own = _fitting(places, record, answer, reply, client)
        if own:
            names.append(answer)
            trained.update(own)
    if client.needs_whole_model and 0 < len(trained) < len(places):
        log.warning("klms: a reply with %d of %d arrays passes uncompressed", len(trained), len(places))
        names, trained = [], {}
    passing = [name for name, record in reply.array_records.items() if record and name not in names]
    if client.sealed and passing:
        raise InvalidArgument(f"with client_secrets, no arrays may pass unsealed: {', '.join(passing)}")
    return names, trained


def _fitting(places: Places, record: str, answer: str, reply: RecordDict, client: Client) -> dict[str, NumPyArray]:
    """Return the arrays of a record by their names in `places`. If they do not fit, log why, and return no arrays."""
    try:
        own = records.gathered(places, {record: arrays_of(reply.array_records[answer])})
        client.check(own)
        return own
    except InvalidArgument as error:
        log.warning("klms: the record %r of a reply passes uncompressed: %s", answer, printable(error))
        return {}
