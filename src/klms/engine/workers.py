"""Worker processes, which end with the process that started them, however that process ends.

Every worker has a pipe of its own and does one task at a time: the parent writes to workers that wait for a task, and
reads from the others. Hence neither side waits for the other to read, and all of the parent's work runs in the caller's
thread, where a signal can interrupt it.
"""

import atexit
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from klms.errors import InvalidArgument, WorkerDied

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def pool_of(workers: int, start: Callable[..., object] | None = None, *args: Any) -> Iterator["Pool"]:
    """Yield a pool of processes, in each of which `start` is called first.

    At the end, and also after an exception or Ctrl-C, the processes are killed: their work can be done again.
    """
    pool = Pool()
    atexit.register(pool.stop)  # before multiprocessing waits for the processes of a pool that nobody closed
    try:
        pool.launch(workers, start, *args)
        yield pool
    finally:
        pool.stop()
        atexit.unregister(pool.stop)


class Pool:
    """Processes that do the tasks of one call at a time; `pool_of` makes and stops a pool."""

    def __init__(self) -> None:
        self._workers: list[_Worker] = []

    def launch(self, workers: int, start: Callable[..., object] | None, *args: Any) -> None:
        """Start the processes and have each call `start`, without waiting for it; only the first result is delayed."""
        if os.name == "posix":
            resource_tracker.ensure_running()  # the first process would start it, which unblocks signals
        for _ in range(workers):
            with _stops_held_back():
                self._workers.append(_Worker())
        if start is not None:
            for worker in self._workers:
                worker.give(None, start, *args)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield the results in the order of their items, each as soon as those before it are complete."""
        early: dict[int, Result] = {}
        following = 0
        for position, result in self.as_completed(function, items):
            early[position] = result
            while following in early:
                yield early.pop(following)
                following += 1

    def as_completed(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Result]]:
        """Yield the position and the result of each item, in the order of completion.

        An exception of `function` is raised here, with the worker's traceback as its cause. If a worker ends before it
        has answered, raise `WorkerDied`.
        """
        call = object()
        left = deque(enumerate(items))
        unanswered = len(left)
        self._hand_out(call, function, left)
        while unanswered:
            answers = [worker.take() for worker in self._answering()]
            self._hand_out(call, function, left)  # first, since the caller may take its time with each result
            for task, result in answers:
                if task is not None and task[0] is call:  # otherwise a start, or a call that was abandoned
                    unanswered -= 1
                    yield task[1], result

    def stop(self) -> None:
        """Kill the processes, without waiting for their tasks."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.connection.close()
            worker.process.join()
        self._workers.clear()

    def _hand_out(self, call: object, function: Callable[[Item], Any], left: deque[tuple[int, Item]]) -> None:
        for worker in self._workers:
            if left and not worker.busy:
                position, item = left.popleft()
                worker.give((call, position), function, item)

    def _answering(self) -> "list[_Worker]":
        """Wait until at least one worker has answered or died, and return all workers that have."""
        busy = {worker.connection: worker for worker in self._workers if worker.busy}
        return [busy[connection] for connection in wait(list(busy))]  # type: ignore[index]


Task = tuple[object, int] | None
"""A call of `as_completed` with the position of an item; None for the start of a worker."""


class _Worker:
    """A process, as its parent sees it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()
        theirs.close()  # the process has the only other end, so that the pipe closes when it ends
        self.busy = False
        self._task: Task = None

    def give(self, task: Task, function: Callable[..., object], *args: Any) -> None:
        """Send a task. If it cannot be pickled, an `InvalidArgument` is raised before anything is sent."""
        try:
            data = pickle.dumps((function, args))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidArgument(
                f"with several workers, model, data and loss go to other processes ({error}): "
                "define them at the top level of a module, or use workers=1"
            ) from error
        try:
            self.connection.send_bytes(data)
        except OSError as error:
            raise self._death() from error
        self.busy = True
        self._task = task

    def take(self) -> tuple[Task, Any]:
        """Return the completed task and its result."""
        try:
            data = self.connection.recv_bytes()
        except (EOFError, OSError) as error:
            raise self._death() from error
        self.busy = False
        result, failure, trace = pickle.loads(data)
        if failure is not None:
            raise failure from _WorkerTraceback(trace)
        return self._task, result

    def _death(self) -> WorkerDied:
        self.process.join(1)  # a process closes its pipe a moment before it ends
        code = self.process.exitcode
        if code is None or code >= 0:
            return WorkerDied(f"a worker process ended before its work was done (exit code {code})")
        reason = signal.Signals(-code).name
        advice = ": if memory ran out, use fewer workers" if -code == signal.SIGKILL else ""
        return WorkerDied(f"a worker process was ended by {reason}{advice}")


class _WorkerTraceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def _serve(connection: Connection) -> None:
    """Do the parent's tasks until it closes the pipe. During a task, another thread watches the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    _block_interrupts(False)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()
    with suppress(EOFError, OSError):
        while True:
            connection.send_bytes(_answer(connection.recv_bytes()))


def _end_with(sentinel: int) -> None:
    """End this process when its parent ends: a worker that outlives its parent would disturb the next start."""
    wait([sentinel])
    os._exit(1)


def _answer(data: bytes) -> bytes:
    """Do a task; return its result, or its exception with the traceback, pickled."""
    try:
        function, args = pickle.loads(data)
        return pickle.dumps((function(*args), None, ""))
    except Exception as error:
        return pickle.dumps((None, _portable(error), traceback.format_exc()))


def _portable(error: Exception) -> Exception:
    """Return the exception, or a `RuntimeError` with the same text if it does not survive pickling."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


@contextmanager
def _stops_held_back() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM while one process starts, and deliver them afterwards.

    A process that is abandoned during its start, or interrupted before it can ignore Ctrl-C, would end with a
    traceback. The new process inherits the block on Ctrl-C. In this process, other threads may still receive
    signals, and Python then calls the handlers in this thread, so the handlers are replaced as well.
    """
    came: list[int] = []
    before = {}
    if threading.current_thread() is threading.main_thread():  # handlers are called in this thread only
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        for number in before:
            signal.signal(number, lambda number, frame: came.append(number))
        _block_interrupts(True)
        yield
    finally:
        _block_interrupts(False)
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


def _block_interrupts(blocked: bool) -> None:
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        signal.pthread_sigmask(signal.SIG_BLOCK if blocked else signal.SIG_UNBLOCK, {signal.SIGINT})
