"""Error feedback: the part of an update that a message left out is added to the next update.

Messages of `klms.compress` are unbiased, so an average over many clients or rounds needs no feedback and no memory of
the size of the update. With few messages at a low rate, their noise may exceed the update. Error feedback (Seide et
al., 2014; Karimireddy et al., 2019) then sends the estimate with the smallest error instead, and remembers the rest.
"""

import io
from collections.abc import Mapping

import numpy as np

from klms.codec import SharedKey
from klms.compressors.arrays import ArraySource, Source, is_dense, sources_of
from klms.compressors.trellis import Effort
from klms.container import Array, read_description, write_arrays
from klms.container import read_arrays as read_container
from klms.errors import CorruptMessage, InvalidArgument
from klms.frame import Frame, Kind
from klms.numerics.jit import Float32
from klms.numerics.parallel import Progress
from klms.update_message import Coding, form_of, key_of, read_arrays, read_header, write_update


class ErrorFeedback:
    """Compresses the updates of one sender, one after the other, and adds to each what earlier messages left out.

    The receiver calls `klms.decompress` and adds up the results. The state is the error of the last message, one
    float32 number per parameter; the sender keeps it and never sends it.

    >>> import klms
    >>> rng = np.random.default_rng(0)
    >>> update, total = rng.standard_normal(3000).astype(np.float32), np.zeros(3000)
    >>> feedback = ErrorFeedback()
    >>> for _ in range(20):
    ...     total += klms.decompress(feedback.compress(update, 1.0, rng=rng))
    >>> bool(np.square(total / 20 - update).mean() < 0.05)
    True
    >>> feedback = ErrorFeedback.from_bytes(feedback.to_bytes())  # after a restart
    """

    def __init__(self) -> None:
        self._residual: dict[str, Float32] = {}

    def compress(
        self,
        update: object,
        bits_per_parameter: float | None = None,
        *,
        key: SharedKey | None = None,
        budget_bytes: int | None = None,
        effort: Effort = "balanced",
        threads: int | None = None,
        rng: np.random.Generator | None = None,
        progress: Progress | bool = False,
    ) -> bytes:
        """Return the message of an update plus what earlier messages left out.

        The arguments are those of `klms.compress`. Names and shapes must be those of earlier updates. If an error is
        raised, the state is unchanged.
        """
        sources = sources_of(update)
        self._check(sources)
        wanted = {name: _Sum(source, self._residual.get(name)) for name, source in sources.items()}
        file = io.BytesIO()
        coding = Coding(bits_per_parameter, key, budget_bytes, effort, threads, rng, progress, echo=1.0)
        write_update(file, wanted, form_of(update), coding)
        sent = _sent(file, key, threads)
        self._residual = {name: _left(wanted[name], array) for name, array in sent.items() if is_dense(array.dtype)}
        return file.getvalue()

    def to_bytes(self) -> bytes:
        """Return the state, for `from_bytes`."""
        return Frame(Kind.RESIDUAL, 0, 0, bytes(8), write_arrays(self._residual)).to_bytes()

    @classmethod
    def from_bytes(cls, data: bytes) -> "ErrorFeedback":
        """Return the object whose state `to_bytes` returned; raise a `KLMSError` for any other bytes."""
        body = Frame.from_bytes(data, Kind.RESIDUAL).body
        if any(one.dtype != np.float32 for one in read_description(body).arrays):
            raise CorruptMessage("the state holds something other than float32 numbers")
        feedback = cls()
        feedback._residual = {name: array.copy() for name, array in read_container(body)[0].items()}
        return feedback

    def _check(self, sources: Mapping[str, Source]) -> None:
        shapes = {name: source.shape for name, source in sources.items() if source.is_dense}
        known = {name: array.shape for name, array in self._residual.items()}
        for name in sorted(shapes.keys() | known.keys()) if known else []:
            if shapes.get(name) != known.get(name):
                raise InvalidArgument(
                    f"array {name!r} has shape {shapes.get(name)}, and {known.get(name)} before: "
                    "use one ErrorFeedback for updates of the same arrays"
                )


class _Sum(Source):
    """An array plus what earlier messages left out of it."""

    def __init__(self, source: Source, residual: Float32 | None) -> None:
        self._source = source
        self._residual = None if residual is None else residual.reshape(-1)
        self.dtype = source.dtype
        self.shape = source.shape

    def floats(self, start: int, stop: int) -> Float32:
        floats = self._source.floats(start, stop)
        return floats if self._residual is None else floats + self._residual[start:stop]

    def exact(self) -> Array:
        return self._source.exact()


def _sent(file: io.BytesIO, key: SharedKey | None, threads: int | None) -> dict[str, Array]:
    """Return the arrays that the receiver will decode."""
    frame, described = read_header(file)
    return read_arrays(file, described, key_of(frame, key), threads, False, bfloat16=True)


def _left(wanted: Source, sent: Array) -> Float32:
    """Return what a message left out of an array."""
    return (wanted.floats(0, sent.size) - ArraySource(sent).floats(0, sent.size)).reshape(sent.shape)
