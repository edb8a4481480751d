"""The client's line: `ClientApp(mods=[klms.flower.compress()])`."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from klms.compressors.base import Vector
from klms.errors import InvalidArgument
from klms.flower.frame import ARRAYS, MessageFrame, fingerprint
from klms.flower.model import Model
from klms.flower.request import PAYLOAD, RECORD, CompressionRequest

_MEMORY = "klms.memory"  # in the node's context: what the scheme has not sent yet


def compress(*, threads: int = 1, seed: int | None = None) -> Mod:
    """Return a mod that replaces the trained arrays by an encoded update, as the server requests.

    Put it first, so that what other mods do to the arrays (clipping, noise) happens before the encoding. It acts only
    on training, and only on messages of a server that uses `Compressed`; every other message passes unchanged.
    `threads` is the number of threads of the codec. With a `seed`, the private randomness of the schemes that need
    some is reproducible.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        is_train = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_train or RECORD not in message.content.config_records:
            return call_next(message, context)
        request = CompressionRequest.read(message.content.config_records[RECORD])
        _, received = only_arrays(message.content)
        arrays = {name: array.numpy() for name, array in received.items()}
        model = Model(arrays, request.small, frozenset(request.sent_unchanged))
        message.content = RecordDict({name: r for name, r in message.content.items() if name != RECORD})
        reply = call_next(message, context)
        if not reply.has_error():
            rng = np.random.default_rng(None if seed is None else [seed, request.round, request.client])
            _encode(reply, context, request, model, threads, rng)
        return reply

    return mod


def only_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """Return the only `ArrayRecord` of a message, and its name."""
    records = content.array_records
    if len(records) != 1:
        raise InvalidArgument(f"klms compresses messages with one ArrayRecord; this one has {len(records)}")
    return next(iter(records.items()))


def _encode(
    reply: Message,
    context: Context,
    request: CompressionRequest,
    model: Model,
    threads: int,
    rng: np.random.Generator,
) -> None:
    """Replace the arrays of the reply by a payload."""
    name, record = only_arrays(reply.content)
    trained = {key: array.numpy() for key, array in record.items()}
    model.check(trained)
    update = model.difference(trained)
    message = b""
    if update.size:
        compressor = request.compressor(model.layout, threads)
        if request.error_feedback:
            update = update + _not_sent_yet(context, update.size)
        message = compressor.encode(update, request.side, key=request.key, rng=rng)
        if request.error_feedback:
            lost = update - compressor.decode(message, request.side, key=request.key).vector
            context.state[_MEMORY] = ArrayRecord({"lost": Array(lost)})
    frame = MessageFrame(ARRAYS, request.round, request.client, fingerprint([*request.agreed(), *model.parts()]))
    payload = frame.write(message, model.write_head(trained))
    content = {key: item for key, item in reply.content.items() if key != name}
    reply.content = RecordDict({**content, RECORD: ConfigRecord({PAYLOAD: payload, "arrays": name})})


def _not_sent_yet(context: Context, size: int) -> Vector:
    if _MEMORY in context.state:
        lost = context.state.array_records[_MEMORY]["lost"].numpy()
        if lost.shape == (size,):
            return lost.astype(np.float32)
    return np.zeros(size, dtype=np.float32)
