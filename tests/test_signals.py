"""Ctrl-C and SIGTERM: the command ends with the right code and without a traceback, whatever it is doing."""

import signal

import pytest

from klms.cli.show import stoppable
from tests.support.commands import started, started_script

SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])


@SIGNALS
def test_a_stop_while_the_command_is_imported_ends_it_at_once(tmp_path, number):
    """Here the import of NumPy is where the signal comes, and the exception would be lost."""
    (tmp_path / "numpy.py").write_text(LOST.format(number=number))
    with started("--version", PYTHONPATH=str(tmp_path)) as process:
        assert process.communicate(timeout=60)[0] == b"error: stopped\n"
    assert process.returncode == 128 + number


@SIGNALS
def test_a_stop_while_torch_is_imported_ends_the_command_at_once(tmp_path, number):
    (tmp_path / "torch.py").write_text(LOST.format(number=number))
    out = tmp_path / "run"
    with started("run", "fedavg", "--out", str(out), PYTHONPATH=str(tmp_path)) as process:
        written = process.communicate(timeout=60)[0].decode()
    assert written == "error: stopped\n"
    assert process.returncode == 128 + number
    assert not out.exists()


LOST = """
import signal, time
try:
    signal.raise_signal({number})
except BaseException:
    print("lost", flush=True)
time.sleep(3600)
"""

COMMAND = """
import hashlib, os, signal, sys, threading, time
import klms.signals as signals

class Destroyed:
    def __del__(self):
        signal.raise_signal({number})

def stop_here():
    signal.raise_signal({number})

def stop_later():
    threading.Timer(0.1, os.kill, (os.getpid(), {number})).start()

signals.watch()
with signals.ending(), signals.stopping(at_once=False, patience={patience}):
    {command}
"""


@SIGNALS
@pytest.mark.parametrize(
    "command",
    [
        "stop_here()",
        pytest.param("Destroyed(); time.sleep(3600)", id="in a destructor"),
        pytest.param("stop_later(); hashlib.pbkdf2_hmac('sha512', b'', b'', 10**9)", id="in compiled code"),
        pytest.param("threading.Thread(target=time.sleep, args=(3600,)).start(); stop_here()", id="beside a thread"),
    ],
)
def test_a_command_ends_even_if_the_exception_is_lost_or_late(number, command):
    assert run(command, number) == ("error: stopped\n", 128 + number)


CLEAR_UP = """
    try:
        stop_here()
    except KeyboardInterrupt as stop:
        {clear_up}
        print(type(stop).__name__)
        sys.exit(5)
"""
WATCHED = "while threading.active_count() > 1: time.sleep(0.01)"  # until nobody watches any more


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_a_command_that_has_caught_the_exception_takes_its_time_and_chooses_its_code(number, name):
    caught = CLEAR_UP.format(clear_up=f"signals.caught()\n        {WATCHED}")
    assert run(caught, number, patience=1) == (f"{name}\n", 5)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_a_command_that_has_not_caught_the_exception_ends_when_patience_does(number, name):
    assert run(CLEAR_UP.format(clear_up="time.sleep(3600)"), number) == ("error: stopped\n", 128 + number)
    assert run(CLEAR_UP.format(clear_up=""), number, patience=60) == (f"{name}\nerror: stopped\n", 128 + number)


@SIGNALS
def test_a_second_stop_ends_the_command_at_once(number):
    assert run(CLEAR_UP.format(clear_up="signals.caught(); stop_here()"), number, patience=60) == ("", 128 + number)


def test_a_command_that_was_started_to_ignore_ctrl_c_ignores_it():
    script = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + COMMAND
    command = "stop_here(); time.sleep(0.3); print('done')"
    with started_script(script.format(number=int(signal.SIGINT), command=command, patience=0.1)) as process:
        assert process.communicate(timeout=60)[0] == b"done\n"
    assert process.returncode == 0


def test_what_a_forked_process_receives_does_not_end_its_parent():
    command = "child = os.fork() or stop_here(); os.waitpid(child, 0); time.sleep(0.3); print('done')"
    assert run(command, signal.SIGTERM) == ("error: stopped\ndone\n", 0)


def test_advice_is_given_once_it_holds(tmp_path):
    file = tmp_path / "file"
    for expected in ([], ["resume"]):
        with pytest.raises(KeyboardInterrupt) as stop, stoppable("resume", once=file):
            raise KeyboardInterrupt
        assert getattr(stop.value, "__notes__", []) == expected
        file.touch()


def run(command: str, number: signal.Signals, patience: float = 0.1) -> tuple[str, int]:
    """Return what a command wrote that is stopped by a signal, and its exit code."""
    with started_script(COMMAND.format(number=int(number), command=command, patience=patience)) as process:
        written = process.communicate(timeout=60)[0].decode()
    return written, process.returncode
