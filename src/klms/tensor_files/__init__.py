"""Files of tensors (`.safetensors`, `.npz`, `.npy`) as messages, and back, for `klms encode` and `klms decode`.

    source.py        tensors in a file
    formats.py       the format of a file
    safetensors.py   reads and writes safetensors
    numpy_files.py   reads and writes .npy and .npz
    coding.py        `encode` and `decode`

Nothing is unpickled. Headers are untrusted and read strictly, within bounds; arrays are read in parts.
"""

from klms.tensor_files.coding import Encoded, check_apart, decode, encode

__all__ = ["Encoded", "check_apart", "decode", "encode"]
