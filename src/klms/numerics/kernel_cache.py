"""Numba's cache of compiled kernels, made to survive damage: neither a damaged file nor a read-only folder is an error.

Numba keeps an index (`.nbi`) and a file per signature (`.nbc`) for each kernel. If a full disk or a crash has truncated
a file, Numba raises an error of `pickle` in every later process. If a bit of the machine code has flipped, Numba runs
the damaged code. If a folder has become read-only, Numba fails. Here, a kernel with damaged files is compiled again,
and its files are replaced. Several processes may do so at the same time: Numba writes each file in one step.
"""
# mypy: disable-error-code="no-untyped-call"

import hashlib
import pickle
from contextlib import suppress
from typing import Any

from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.dispatcher import Dispatcher
from numba.core.serialize import dumps


class _SealedResult(CompileResultCacheImpl):
    """Stores a compiled kernel with a digest, which is checked when the kernel is loaded."""

    def reduce(self, cres: Any) -> tuple[bytes, bytes]:
        content = dumps(super().reduce(cres))
        return hashlib.sha256(content).digest(), content

    def rebuild(self, target_context: Any, payload: tuple[bytes, bytes]) -> Any:
        digest, content = payload
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("the digest of a cached kernel does not match")
        return super().rebuild(target_context, pickle.loads(content))


class _Cache(FunctionCache):
    _impl_class = _SealedResult

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the kernel for these types of arguments; None if it must be compiled."""
        try:
            found = super().load_overload(sig, target_context)
        except Exception:  # damaged pickles raise almost any kind of error
            return None
        # While another process writes, the index may already point to a file that still has code for other types.
        return found if found is not None and found.signature.args == tuple(sig) else None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Replace the file of a kernel; if that is impossible, the kernel is not cached."""
        try:
            super().save_overload(sig, data)
        except OSError:  # the disk is full, or the folder has become read-only
            return
        except Exception:  # the index is damaged: begin an empty one
            with suppress(Exception):
                self.flush()
                super().save_overload(sig, data)


def enable_caching(compiled: object) -> None:
    """Cache a kernel on disk if a cache folder is writable; with NUMBA_DISABLE_JIT, there is no kernel to cache."""
    if isinstance(compiled, Dispatcher):
        with suppress(RuntimeError):  # neither the package's folder nor the user's cache is writable
            # Dispatcher.enable_caching does the same with Numba's own cache class, and accepts no other.
            compiled._cache = _Cache(compiled.py_func)  # type: ignore[attr-defined]
