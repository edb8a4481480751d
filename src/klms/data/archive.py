"""Reading of untrusted NumPy archives: numbers only, and never more memory than the caller allows."""

import zipfile
from typing import IO

import numpy as np
import numpy.typing as npt

from klms.errors import CorruptMessage


def read_arrays(file: IO[bytes], limit: int) -> dict[str, npt.NDArray[np.generic]]:
    """Read a NumPy archive of numbers; raise `CorruptMessage` for other files, or for more than `limit` bytes."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
        if sum(member.file_size for member in members) > limit:
            raise CorruptMessage(f"the archive unpacks to more than {limit} bytes")
        # A name that occurs twice would be unpacked twice. Only members of these two types are unpacked in parts.
        once = len({member.filename for member in members}) == len(members)
        if not once or any(m.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) for m in members):
            raise CorruptMessage("the archive is not one that klms writes")
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        if not all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in arrays.values()):
            raise CorruptMessage("the archive holds something other than numbers")
        return arrays
    except CorruptMessage:
        raise
    except Exception as error:  # NumPy's and zipfile's readers raise almost any kind, depending on the damage
        raise CorruptMessage(f"the bytes are not an archive of arrays: {error}") from error
