"""NVFlare's AdaQuant, and float16, which NVFlare's quantizer also offers."""

from functools import partial

import numpy as np
import torch
from nvflare.app_common.decomposers import numpy_decomposers
from nvflare.app_opt.pt.quantization.ada_quant import AdaQuantizer
from nvflare.fuel.utils import fobs
from peer import Arrays, measure


def encode(quantizer: AdaQuantizer, update: Arrays) -> tuple[bytes, int]:
    """Return the quantised tensors with their states, as NVFlare serialises them, and the number of bytes."""
    quantized = {}
    for name, array in update.items():
        tensor, state = quantizer.quantize(torch.from_numpy(array))
        quantized[name] = [np.asarray(tensor), state]
    message = dumps(quantized)
    return message, len(message)


def decode(quantizer: AdaQuantizer, message: bytes) -> Arrays:
    """Return the dequantised arrays."""
    decoded = {}
    for name, (tensor, state) in fobs.loads(message).items():
        decoded[name] = quantizer.dequantized(torch.from_numpy(np.array(tensor)), state).numpy() if state else tensor
    return decoded


def dumps(arrays: dict) -> bytes:
    """Return the bytes that NVFlare would send."""
    return fobs.dumps(arrays, max_value_size=1 << 40)


def encode_half(update: Arrays) -> tuple[bytes, int]:
    """Return the arrays in float16, serialised, and the number of bytes."""
    message = dumps({name: array.astype(np.float16) for name, array in update.items()})
    return message, len(message)


def main() -> None:
    """Print a row for every setting."""
    numpy_decomposers.register()
    measure("NVFlare", "float16", encode_half, fobs.loads)
    for weight in (1.0, 0.1, 0.01):
        quantizer = AdaQuantizer(weight=weight)
        measure("NVFlare", f"AdaQuant, weight {weight:g}", partial(encode, quantizer), partial(decode, quantizer))


main()
