"""Pools of processes; and runs that are stopped, with what they leave behind."""

import multiprocessing
import os
import signal
import sys
import threading
from pathlib import Path
from pickle import PicklingError

import pytest

from klms.engine.workers import pool_of
from klms.errors import InvalidArgument, KLMSError, WorkerDied
from tests.support import tasks
from tests.support.commands import eventually, members, send, started, started_script
from tests.support.small_data import write_mnist


@pytest.fixture(scope="module")
def pool():
    """Two workers for many tests: whatever a task does, the next ones are done."""
    with pool_of(2) as pool:
        yield pool


def test_results_have_the_order_of_their_items_and_work_goes_to_whoever_is_free(pool, tmp_path):
    file = tmp_path / "file"
    items = [(tasks.wait_for, file), (len, "ab"), (len, "abc"), (file.touch,)]
    (first, waited), *others = pool.map(tasks.call, items)
    assert first is None
    assert [result for result, _ in others] == [2, 3, None]
    assert len({process for _, process in others}) == 1
    assert waited not in {process for _, process in others}


def test_results_come_as_soon_as_they_are_complete(pool, tmp_path):
    file = tmp_path / "file"
    results = pool.as_completed(tasks.call, [(tasks.wait_for, file), (len, "ab")])
    assert next(results)[0] == 1
    file.touch()
    assert next(results)[0] == 0
    assert list(results) == []


def test_nothing_to_do(pool):
    assert list(pool.map(len, [])) == []


def test_results_of_a_call_that_was_abandoned_are_dropped(pool):
    assert next(pool.map(len, ["a", "ab", "abc"])) == 1
    assert list(pool.map(len, ["abcd", "abcde"])) == [4, 5]


def test_items_and_results_may_be_larger_than_what_a_pipe_holds(pool):
    items = [bytes([n]) * 3_000_000 for n in range(5)]
    assert list(pool.map(bytes.upper, items)) == items


def test_an_exception_is_raised_here_with_the_traceback_from_there(pool):
    with pytest.raises(KLMSError, match="that way") as caught:
        list(pool.map(tasks.fail, [KLMSError("not that way")]))
    assert "in fail\n    raise error" in str(caught.value.__cause__)
    assert list(pool.map(len, ["a"])) == [1]


@pytest.mark.parametrize(
    ("function", "item", "message"),
    [
        (tasks.make_function, 0, "pickle"),
        (tasks.fail_oddly, 0, "Odd: odd exception"),
    ],
)
def test_results_that_cannot_be_pickled_are_an_error(pool, function, item, message):
    with pytest.raises((AttributeError, PicklingError, RuntimeError), match=message):
        list(pool.map(function, [item]))
    assert list(pool.map(len, ["a"])) == [1]


@pytest.mark.parametrize("item", [lambda: None, threading.Lock()], ids=["lambda", "lock"])
def test_items_that_cannot_be_pickled_are_refused(pool, item):
    with pytest.raises(InvalidArgument, match=r"other processes \(.*pickle.*\): define them .*, or use workers=1"):
        list(pool.map(len, [item]))
    assert list(pool.map(len, ["a"])) == [1]


def test_every_worker_starts_as_it_is_told():
    with pool_of(2, tasks.keep, "this") as pool:
        assert list(pool.map(tasks.kept, range(4))) == [["this"]] * 4


def test_a_start_that_fails_is_the_error():
    with pool_of(2, tasks.fail, KLMSError("no data")) as pool, pytest.raises(KLMSError, match="no data"):
        list(pool.map(len, ["a"]))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ((signal.raise_signal, signal.SIGKILL), "ended by SIGKILL: if memory ran out, use fewer workers"),
        ((signal.raise_signal, signal.SIGTERM), "ended by SIGTERM$"),
        ((sys.exit, 3), r"before its work was done \(exit code 3\)"),
    ],
)
def test_a_worker_that_dies_is_an_error_at_once(tmp_path, task, message):
    """The other worker would be at work for an hour."""
    with pool_of(2) as pool, pytest.raises(WorkerDied, match=message):
        list(pool.map(tasks.call, [(tasks.write_and_wait, tmp_path / "file"), task]))


def test_a_worker_that_died_while_it_had_nothing_to_do_is_an_error():
    with pool_of(1) as pool:
        ((_, worker),) = pool.map(tasks.call, [(len, "a")])
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            list(pool.map(len, ["a"]))


def test_an_exception_ends_workers_in_the_middle_of_their_work(tmp_path):
    files = [tmp_path / "one", tmp_path / "two"]

    def work() -> None:
        with pool_of(2) as pool:
            results = pool.as_completed(tasks.call, [(len, ""), *((tasks.write_and_wait, file) for file in files)])
            next(results)
            assert len(multiprocessing.active_children()) >= 2
            assert eventually(files[0].exists)
            raise KeyboardInterrupt

    before = set(multiprocessing.active_children())
    with pytest.raises(KeyboardInterrupt):
        work()
    assert set(multiprocessing.active_children()) <= before


HELD_BACK = """
import signal
from klms.engine.workers import _stops_held_back
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.default_int_handler)
    try:
        with _stops_held_back():
            signal.raise_signal(number)
            print("started")
    except KeyboardInterrupt:
        print("stopped", signal.getsignal(number) is signal.default_int_handler)
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""


def test_a_stop_waits_until_a_process_has_started():
    assert written_by(HELD_BACK).split("\n") == ["started", "stopped True"] * 2 + ["set()", ""]


INTERRUPTED_BIRTH = """
import signal
from klms.engine.workers import pool_of
if __name__ == "__mp_main__":
    signal.raise_signal(signal.SIGINT)
if __name__ == "__main__":
    with pool_of(2) as pool:
        print(list(pool.map(len, ["a", "ab"])))
"""


def test_ctrl_c_does_not_reach_a_worker_that_is_still_starting(tmp_path):
    assert written_by(INTERRUPTED_BIRTH, tmp_path) == "[1, 2]\n"


DEAF_WORKER = """
import os, signal, time
from klms.engine.workers import pool_of
if __name__ == "__mp_main__":
    time.sleep(0.2)  # by then the parent is most likely in the middle of sending
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(3600)
if __name__ == "__main__":
    try:
        with pool_of(1, len, bytes(100_000_000)):
            print("sent")
    except KeyboardInterrupt:
        print("stopped")
"""


def test_ctrl_c_interrupts_sending_to_a_worker_that_does_not_read(tmp_path):
    assert written_by(DEAF_WORKER, tmp_path) == "stopped\n"


NEVER_CLOSED = """
from klms.engine.workers import pool_of
opened = pool_of(2)
print(list(opened.__enter__().map(len, ["a"])))
"""


def test_a_pool_that_nobody_closes_does_not_keep_its_process_from_ending():
    assert written_by(NEVER_CLOSED) == "[1]\n"


ORPHANS = """
import sys
from pathlib import Path
from klms.engine.workers import pool_of
from tests.support.tasks import write_and_wait
with pool_of(2) as pool:
    list(pool.map(write_and_wait, map(Path, sys.argv[1:])))
"""


def test_workers_in_the_middle_of_their_work_end_when_their_parent_is_killed(tmp_path):
    files = [tmp_path / "one", tmp_path / "two"]
    with started_script(ORPHANS, *map(str, files)) as process:
        assert eventually(lambda: all(file.exists() for file in files))
        process.kill()
        assert process.communicate(timeout=60)[0] == b""
        assert eventually(lambda: not members(process.pid))


def written_by(script: str, folder: Path | None = None) -> str:
    """Return what a script wrote, given as a file in a folder if it must be found by its workers."""
    with started_script(script, folder=folder) as process:
        written = process.communicate(timeout=60)[0].decode()
        assert eventually(lambda: not members(process.pid))
    return written


@pytest.mark.parametrize(("when", "number"), [("loading", signal.SIGINT), ("training", signal.SIGTERM)])
def test_a_stopped_run_ends_its_workers_and_says_how_to_resume(tmp_path, when, number):
    mnist = write_mnist(tmp_path / "mnist")
    out = tmp_path / "run"
    settings = ["--width", "0.2", "--rounds", "5000", "--clients", "2", "--data-dir", str(mnist), "--out", str(out)]
    with started("run", "fedavg", *settings, "--workers", "2") as process:
        launched = 4  # with the command itself, and the tracker of resources that multiprocessing starts
        assert eventually(lambda: len(members(process.pid)) == launched)
        assert when == "loading" or eventually((out / "checkpoint.klms").exists)
        send(process, number)
        written = process.communicate(timeout=60)[0].decode()
        assert eventually(lambda: not members(process.pid))
    assert process.returncode == 128 + number
    assert f"error: stopped; resume with: klms run --resume {out}\n" in written
    assert not any(word in written for word in ("Traceback", "Exception", "leaked"))
