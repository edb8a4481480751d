"""The client's line: `ClientApp(mods=[klms.flower.compress()])`."""

import logging
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict

from klms.compressors.base import Compressor, Vector
from klms.errors import CorruptMessage, InvalidArgument, OutOfSync
from klms.flower.downlink import DOWN, HELLO, OUT_OF_SYNC, receive
from klms.flower.frame import ARRAYS, MessageFrame, fingerprint
from klms.flower.model import Model
from klms.flower.request import PAYLOAD, RECORD, VERSION, CompressionRequest

if TYPE_CHECKING:
    from flwr.clientapp.typing import ClientAppCallable, Mod  # older releases have them elsewhere

log = logging.getLogger("flwr")
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
        if DOWN in message.content.config_records:
            try:
                message.content = _with_arrays(message.content, context, threads)
            except OutOfSync as error:
                return Message(RecordDict({OUT_OF_SYNC: ConfigRecord({"reason": str(error)})}), reply_to=message)
        is_train = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_train or RECORD not in message.content.config_records:
            return call_next(message, context)
        request = CompressionRequest.read(message.content.config_records[RECORD])
        received = {name: array.numpy() for name, array in only_arrays(message.content)[1].items()}
        model = Model(received, request.small, frozenset(request.sent_unchanged), frozenset(request.coarse))
        message.content = RecordDict({name: r for name, r in message.content.items() if name != RECORD})
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, arrays = only_arrays(reply.content)
        trained = {key: array.numpy() for key, array in arrays.items()}
        if trained.keys() < received.keys():
            log.warning("klms: a reply with %d of %d arrays passes uncompressed", len(trained), len(received))
            return reply
        model.check(trained)
        update, encoded = model.difference(trained), b""
        rng = np.random.default_rng(None if seed is None else [seed, request.round, request.client])
        if update.size:
            encoded = _encode(update, request, request.compressor(model.layout, threads), context, rng)
        frame = MessageFrame(ARRAYS, request.round, request.client, fingerprint([*request.agreed(), *model.parts()]))
        record = ConfigRecord({PAYLOAD: frame.write(encoded, model.write_head(trained, rng)), "arrays": name})
        reply.content = RecordDict({**{key: r for key, r in reply.content.items() if key != name}, RECORD: record})
        return reply

    return mod


def _with_arrays(content: RecordDict, context: Context, threads: int) -> RecordDict:
    """Return what the strategy sent: the arrays in their place, instead of the broadcast."""
    down = content.config_records[DOWN]
    arrays = {name: Array(array) for name, array in receive(down, context, threads).items()}
    place = down.get("arrays")
    if not isinstance(place, str) or place in content:
        raise CorruptMessage("the record of the downlink does not say which arrays it stands for")
    return RecordDict(
        {
            place if name == DOWN else name: ArrayRecord(arrays) if name == DOWN else record
            for name, record in content.items()
        }
    )


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the only `ArrayRecord` of a message, and its name."""
    records = content.array_records
    if len(records) != 1:
        raise InvalidArgument(f"klms compresses messages with one ArrayRecord; this one has {len(records)}")
    return next(iter(records.items()))


def _encode(
    update: Vector, request: CompressionRequest, compressor: Compressor, context: Context, rng: np.random.Generator
) -> bytes:
    if not request.error_feedback:
        return compressor.encode(update, request.side, key=request.key, rng=rng)
    stored = context.state.array_records.get(_MEMORY)
    lost = np.zeros_like(update) if stored is None else stored["lost"].numpy()
    if lost.shape == update.shape:
        update = update + lost.astype(np.float32)
    message = compressor.encode(update, request.side, key=request.key, rng=rng)
    lost = update - compressor.decode(message, request.side, key=request.key).vector
    context.state[_MEMORY] = ArrayRecord({"lost": Array(lost)})
    return message
