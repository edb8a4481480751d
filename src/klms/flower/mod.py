"""The client's line: `ClientApp(mods=[klms.flower.compress()])`."""

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod

from klms.compressors.base import Vector
from klms.flower.frame import ARRAYS, Ticket, fingerprint
from klms.flower.model import Model
from klms.flower.order import PAYLOAD, RECORD, Order

_MEMORY = "klms.memory"  # in the node's context: what the scheme has not sent yet


def compress(*, threads: int = 1, seed: int | None = None) -> Mod:
    """A mod that sends what training changed, encoded as the server asks, instead of the arrays.

    Put it first, so that what other mods do to the arrays (clipping, noise) is done before. It acts on messages of a
    server that uses `Compressed`, and on training alone; every other message passes as it is. `threads` are the
    codec's; with a `seed`, the private randomness of the schemes that need some is reproducible.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        is_train = message.metadata.message_type.partition(".")[0] == MessageType.TRAIN
        if not is_train or RECORD not in message.content.config_records:
            return call_next(message, context)
        order = Order.read(message.content.config_records[RECORD])
        _, received = the_arrays(message.content)
        arrays = {name: array.numpy() for name, array in received.items()}
        model = Model(arrays, order.small, frozenset(order.kept))
        message.content = RecordDict({name: r for name, r in message.content.items() if name != RECORD})
        reply = call_next(message, context)
        if not reply.has_error():
            rng = np.random.default_rng(None if seed is None else [seed, order.round, order.client])
            _encode(reply, context, order, model, threads, rng)
        return reply

    return mod


def the_arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The one record of arrays that a message must have, and its name."""
    records = content.array_records
    if len(records) != 1:
        raise ValueError(f"klms compresses messages with one ArrayRecord; this one has {len(records)}")
    return next(iter(records.items()))


def _encode(
    reply: Message, context: Context, order: Order, model: Model, threads: int, rng: np.random.Generator
) -> None:
    """The arrays of the reply become a payload."""
    name, record = the_arrays(reply.content)
    trained = {key: array.numpy() for key, array in record.items()}
    update = model.difference(trained)
    message = b""
    if update.size:
        compressor = order.compressor(model.layout, threads)
        if order.feedback:
            update = update + _remembered(context, update.size)
        message = compressor.encode(update, order.side, key=order.key, rng=rng)
        if order.feedback:
            lost = update - compressor.decode(message, order.side, key=order.key)
            context.state[_MEMORY] = ArrayRecord({"lost": Array(lost)})
    ticket = Ticket(ARRAYS, order.round, order.client, fingerprint([*order.agreed(), *model.parts()]))
    payload = ticket.frame(model.write(trained, message))
    content = {key: item for key, item in reply.content.items() if key != name}
    reply.content = RecordDict({**content, RECORD: ConfigRecord({PAYLOAD: payload, "arrays": name})})


def _remembered(context: Context, size: int) -> Vector:
    if _MEMORY in context.state:
        lost = context.state.array_records[_MEMORY]["lost"].numpy()
        if lost.shape == (size,):
            return lost.astype(np.float32)
    return np.zeros(size, dtype=np.float32)
