"""How the `klms` command ends after Ctrl-C or SIGTERM: by an exception, so that it can clean up, and soon in any case.

The command runs `watch` before it imports other modules, so this module imports little itself.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from types import FrameType
    from typing import NoReturn

PATIENCE = 1.5
"""Seconds that a command has to clean up; klms promises to end within two seconds of the signal.

An exception can be lost in a destructor or in compiled code, and compiled code delays it until that code returns."""
_STOPS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM: it ends a command as Ctrl-C does, with another exit code."""


class _Ending:
    """How this process ends after a signal, and how far it has come."""

    at_once = True
    """Whether there is nothing to clean up."""
    patience = PATIENCE
    number: int | None = None
    """The signal that was received."""
    caught = False
    """Whether the command has caught the signal's exception."""


def watch() -> None:
    """From now on, end this process after Ctrl-C or SIGTERM."""
    for number in _STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # ignored in jobs that a shell runs in the background
            signal.signal(number, _on_signal)

    import socket  # only now, when signals are handled
    import threading

    read, written = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.detach(), warn_on_full_buffer=False)
    if hasattr(os, "register_at_fork"):  # a forked process handles its own signals
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
    threading.Thread(target=_lose_patience, args=(read,), daemon=True).start()
    sys.unraisablehook = _pass_over_stops


@contextmanager
def stopping(*, at_once: bool, patience: float = PATIENCE) -> Iterator[None]:
    """Choose how a stop ends the command within this block: at once, or by an exception, so that it can clean up."""
    before = _Ending.at_once, _Ending.patience
    _Ending.at_once, _Ending.patience = at_once, patience
    try:
        yield
    finally:
        _Ending.at_once, _Ending.patience = before


def caught() -> None:
    """Record that the command has caught the exception.

    From here on, the command decides how long it takes to end, and its exit code.
    """
    _Ending.caught = True


@contextmanager
def ending() -> Iterator[None]:
    """After a stop, end the process without Python's exit handlers, which can wait for threads of libraries."""
    try:
        yield
    except BaseException as end:
        if _Ending.number is not None:
            with suppress(OSError):
                sys.stdout.flush()
            code = end.code if _Ending.caught and isinstance(end, SystemExit) else None
            _leave(code if isinstance(code, int) else 128 + _Ending.number)
        raise


def _on_signal(number: int, frame: "FrameType | None") -> None:
    first = _Ending.number is None
    _Ending.number = number
    if _Ending.at_once or not first:
        _leave(128 + number)
    raise Terminated if number == signal.SIGTERM else KeyboardInterrupt


def _lose_patience(signals: "socket.socket") -> None:
    """Wait for a signal, and end this process some time later unless the command has caught its exception by then."""
    number = 0
    while number not in _STOPS:
        number = signals.recv(1)[0]
    time.sleep(_Ending.patience)
    if not _Ending.caught:
        _leave(128 + number)


def _leave(code: int) -> "NoReturn":
    if not _Ending.caught:
        remove_bar = "\r\033[K\033[?25h" if os.isatty(2) else ""  # clear the line, and show the cursor again
        with suppress(OSError):  # nobody reads the output
            os.write(2, f"{remove_bar}error: stopped\n".encode())
    os._exit(code)


def _pass_over_stops(unraisable: "sys.UnraisableHookArgs") -> None:
    """Ignore an exception of this module that was lost in a destructor: the process ends anyway."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
