"""The client's line: `ClientApp(mods=[klms.flower.compress()])`."""

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from klms.compressors.base import Compressor, Side, Vector
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync
from klms.flower.downlink import DOWN, HELLO, OUT_OF_SYNC, held_history, receive
from klms.flower.frame import ARRAYS, MessageFrame, fingerprint
from klms.flower.model import Array as NumPyArray
from klms.flower.model import Model
from klms.flower.records import Places, answers, gathered, places_of, read
from klms.flower.request import PAYLOAD, RECORD, VERSION, CompressionRequest
from klms.flower.sealing import seal
from klms.flower.surroundings import check_mods_around
from klms.printable import printable

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable, Mod  # older releases have them elsewhere

log = logging.getLogger("flwr")
_LONG = 2.0  # seconds of encoding that are worth a line
_MEMORY = "klms.memory"  # in the node's context: what the scheme has not sent yet


def compress(*called: object, threads: int = 1, seed: int | None = None) -> "Mod":
    """Return a mod that replaces the trained arrays by an encoded update, as the server requests.

    Put it first, so that what other mods do to the arrays (clipping, noise) happens before the encoding. It acts only
    on messages of a server that uses `Compressed`; every other message passes unchanged. It keeps the model of the last
    round in the node's context, so that the server need send only what is new.
    `threads` is the number of threads of the codec. With a `seed`, the private randomness of the schemes that need
    some is reproducible.
    """
    if called:
        raise InvalidArgument("compress makes a mod and is not one itself: write mods=[compress()]")

    def mod(message: Message, context: Context, call_next: "ClientAppCallable") -> Message:
        if HELLO in message.content.config_records:
            return Message(RecordDict({HELLO: ConfigRecord({"version": VERSION})}), reply_to=message)
        follows = DOWN in message.content.config_records
        if follows:
            try:
                message.content = _with_arrays(message.content, context, threads)
            except OutOfSync as error:
                return Message(RecordDict({OUT_OF_SYNC: ConfigRecord({"reason": str(error)})}), reply_to=message)
        is_train = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_train or RECORD not in message.content.config_records:
            return call_next(message, context)
        check_mods_around()
        request = CompressionRequest.read(message.content.config_records[RECORD])
        records = message.content.array_records
        places = places_of(records)
        unchanged, coarse = frozenset(request.sent_unchanged), frozenset(request.coarse)
        received = {name: read(array) for name, array in gathered(places, records).items()}
        model = Model(received, request.small, unchanged, coarse)
        message.content = RecordDict({name: r for name, r in message.content.items() if name != RECORD})
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        replaced, trained = _compressible(reply.content, records, places, model)
        sent = model.only(trained)
        if not request.server and (not trained or (sent is not model and request.needs_whole_model)):
            log.warning("klms: a reply with %d of %d arrays passes uncompressed", len(trained), len(model.arrays))
            return reply
        update, encoded = sent.difference(trained), b""
        rng = np.random.default_rng(None if seed is None else [seed, request.round, request.client])
        if update.size:
            start = time.perf_counter()
            known = held_history(context, sent.layout) if follows and request.uses_history else {}
            compressor, side = request.compressor(sent.layout, threads), {**request.side, **known}
            encoded = _encode(update, request, compressor, side, context, rng)
            if (seconds := time.perf_counter() - start) > _LONG:
                log.info("klms: %d parameters became %d bytes in %.1f seconds", update.size, len(encoded), seconds)
        frame = MessageFrame(ARRAYS, request.round, request.client, fingerprint([*request.agreed(), *model.parts()]))
        payload = frame.write(encoded, model.write_head(trained, rng))
        payload = seal(payload, request.server) if request.server else payload
        record = ConfigRecord({PAYLOAD: payload, "arrays": replaced})
        others = {name: r for name, r in reply.content.items() if name not in replaced}
        reply.content = RecordDict({**others, RECORD: record})
        return reply

    return mod


def _with_arrays(content: RecordDict, context: Context, threads: int) -> RecordDict:
    """Return what the strategy sent: the arrays in their place, instead of the broadcast."""
    down = content.config_records[DOWN]
    arrays = receive(down, context, threads)
    place = down.get("arrays")
    if not isinstance(place, str) or place in content:
        raise CorruptMessage("the record of the downlink does not say which arrays it stands for")
    return RecordDict(
        {place if name == DOWN else name: arrays if name == DOWN else record for name, record in content.items()}
    )


def _compressible(
    reply: RecordDict, received: Mapping[str, ArrayRecord], places: Places, model: Model
) -> tuple[list[str], dict[str, NumPyArray]]:
    """Return the names of the reply's records that klms can compress, and their arrays; the others pass."""
    names: list[str] = []
    trained: dict[str, NumPyArray] = {}
    for record, answer in answers(received, reply.array_records).items():
        try:
            found = gathered(places, {record: reply.array_records[answer]})
            own = {name: read(array) for name, array in found.items()}
            model.check(own)
        except InvalidArgument as error:
            log.warning("klms: the record %r of a reply passes uncompressed: %s", answer, printable(error))
            continue
        if own:  # there is no need to compress an empty record
            names.append(answer)
            trained.update(own)
    return names, trained


def _encode(
    update: Vector,
    request: CompressionRequest,
    compressor: Compressor,
    side: Side,
    context: Context,
    rng: np.random.Generator,
) -> bytes:
    if not request.error_feedback:
        return compressor.encode(update, side, key=request.key, rng=rng)
    stored = context.state.array_records.get(_MEMORY)
    lost = np.zeros_like(update) if stored is None else stored["lost"].numpy()
    if lost.shape == update.shape:
        update = update + lost.astype(np.float32)
    message = compressor.encode(update, side, key=request.key, rng=rng)
    lost = update - compressor.decode(message, side, key=request.key).vector
    context.state[_MEMORY] = ArrayRecord({"lost": Array(lost)})
    return message
