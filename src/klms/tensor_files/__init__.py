"""Files of tensors (`.safetensors`, `.npz`, `.npy`) as messages, and back, for `klms encode` and `klms decode`.

    source.py        tensors that are in a file
    formats.py       which file is of which format
    safetensors.py   reads and writes safetensors
    numpy_files.py   reads and writes .npy and .npz
    coding.py        `encode` and `decode`

Nothing is unpickled. Headers are read strictly and within bounds, whoever wrote them; arrays are read in parts.
"""

from klms.tensor_files.coding import Encoded, decode, encode

__all__ = ["Encoded", "decode", "encode"]
