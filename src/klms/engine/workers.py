"""Worker processes, which end with the process that started them, however that ends."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

_STOPS = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def pool_of(workers: int, start: Callable[..., object] | None = None, *args: Any) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes, in each of which `start` is called first.

    After an exception, Ctrl-C included, the processes are killed: what they do can be done again.
    """
    pool = ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start, initargs=(start, *args)
    )
    try:
        with _stops_held_back():  # a process whose start is interrupted would end with a traceback
            for _ in range(workers):
                pool.submit(os.getpid)  # each starts one more process, since none is idle yet
        yield pool
    except BaseException:
        processes = list((getattr(pool, "_processes", None) or {}).values())  # public only from Python 3.14 on
        for process in processes:
            process.kill()
        results = getattr(getattr(pool, "_result_queue", None), "_writer", None)  # not public either
        if results is not None:  # the rest of a result that a killed process was sending would be awaited for ever
            results.close()
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.join()
        raise
    pool.shutdown()


def _start(start: Callable[..., object] | None, *args: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
    _mask_stops(False)
    parent = multiprocessing.parent_process()
    if parent is not None:  # a worker that outlives its parent would disturb the next start
        threading.Thread(target=lambda: (wait([parent.sentinel]), os._exit(1)), daemon=True).start()
    if start is not None:
        start(*args)


@contextmanager
def _stops_held_back() -> Iterator[None]:
    """Deliver Ctrl-C and SIGTERM only afterwards; processes that are started meanwhile inherit the delay.

    The mask is what they inherit. Here other threads may receive a signal in spite of it, so handlers collect it too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in _STOPS}
    _mask_stops(True)
    try:
        yield
    finally:
        _mask_stops(False)
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _mask_stops(masked: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK if masked else signal.SIG_UNBLOCK, _STOPS)
