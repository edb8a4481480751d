"""klms in OpenFL: a compression pipeline for the differences of models that collaborators and aggregator exchange.

    collaborator :
      template : klms.openfl.Collaborator
    compression_pipeline :
      template : klms.openfl.Pipeline
      settings :
        bits_per_parameter : 1.0

`docs/openfl.md` describes the effect in a federation. This module needs the extra `openfl`.

OpenFL codes one tensor at a time, and tells its pipelines neither the round nor who is coding. It also relies on equal
tensors becoming equal bytes: the aggregator codes a difference once for its own model and again for each collaborator.
Therefore messages carry their own keys, and the randomness of a message is a function of the tensor.
"""

import sys
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from klms import compress, decompress
from klms.compressors.arguments import number
from klms.errors import InvalidArgument, MissingExtra
from klms.numerics.checks import check_name

try:
    import openfl.component
    from openfl.pipelines.pipeline import Float32NumpyArrayToBytes, TransformationPipeline, Transformer
except ImportError as error:
    raise MissingExtra(
        "klms.openfl needs OpenFL, which cannot be installed with the versions of constraints.txt: run "
        "pip install '.[openfl]' in the clone of klms, in an environment of its own"
    ) from error

_SEED = 8  # bytes
_LEAST = 512
"""Number of bytes that a tensor of any size may take; about 120 of these bytes are headers."""
_MOST = 8.0
"""Bits per parameter beyond which a tensor is sent unchanged."""


class KlmsTransformer(Transformer):
    """Codes tensors at `bits_per_parameter`; small tensors get a higher rate, and the smallest are sent unchanged."""

    def __init__(self, bits_per_parameter: float = 1.0) -> None:
        if not 0.0001 <= number("bits_per_parameter", bits_per_parameter) <= _MOST:
            raise InvalidArgument(f"bits_per_parameter must be from 0.0001 to {_MOST:g}, got {bits_per_parameter}")
        self.lossy = True
        self.bits_per_parameter = bits_per_parameter
        self._unchanged = Float32NumpyArrayToBytes()

    def forward(self, data: npt.ArrayLike, **kwargs: Any) -> tuple[bytes, dict[str, Any]]:
        given = np.asarray(data)
        if given.dtype.kind not in "fiub":
            raise InvalidArgument(f"only real numbers can be sent, got a tensor of {given.dtype}")
        array = given.astype(np.float32, copy=False)
        bits = max(self.bits_per_parameter, 8 * _LEAST / max(1, array.size))
        if bits > _MOST or given.dtype.kind != "f" or kwargs.get("unchanged"):
            message, metadata = self._unchanged.forward(array)
            return bytes(message), dict(metadata)
        return _message_of(array, min(bits, _MOST)), {"bool_list": [True]}

    def backward(self, data: bytes, metadata: dict[str, Any], **kwargs: Any) -> npt.NDArray[np.float32]:
        if not metadata.get("bool_list"):
            return np.array(self._unchanged.backward(data, metadata))
        return np.asarray(decompress(bytes(data)), dtype=np.float32)


class Pipeline(TransformationPipeline):
    """A compression pipeline with `KlmsTransformer` as its only transformer."""

    def __init__(self, bits_per_parameter: float = 1.0, **kwargs: Any) -> None:
        for name in kwargs:  # OpenFL passes the settings of the plan and nothing else
            check_name("setting of klms.openfl.Pipeline", name, ["bits_per_parameter"])
        super().__init__([KlmsTransformer(bits_per_parameter)])

    def forward(self, data: npt.ArrayLike, **kwargs: Any) -> tuple[bytes, list[dict[str, Any]]]:
        """Code a tensor. Models that OpenFL writes to files also pass through this method, and stay unchanged."""
        unchanged = sys._getframe(1).f_code.co_name == "construct_model_proto"
        message, metadata = super().forward(data, unchanged=unchanged, **kwargs)
        return message, metadata


class Collaborator(openfl.component.Collaborator):
    """A collaborator that sends differences in every round.

    To compute a difference, OpenFL 1.9 looks up the model before training under the collaborator's name. From the
    second round on, that model is stored only under the aggregator's name, so OpenFL would send whole, unchanged
    tensors.
    """

    def get_data_for_tensorkey(self, tensor_key: Any) -> Any:
        tensor = super().get_data_for_tensorkey(tensor_key)
        if "model" in tensor_key.tags:
            self.tensor_db.cache_tensor({tensor_key._replace(origin=self.collaborator_name): tensor})
        return tensor


def _message_of(array: npt.NDArray[np.float32], bits_per_parameter: float) -> bytes:
    """Return a message that carries its own key, which is derived from the tensor."""
    seed = blake2b(array.tobytes(), digest_size=_SEED, person=b"klms openfl").digest()
    return compress(array, bits_per_parameter, rng=np.random.default_rng(int.from_bytes(seed, "little")))
