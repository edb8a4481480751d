import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

from klms.processes import Process
from tests.support.processes import assert_none_is_left_in, needs_proc, working_in
from tests.support.waiting import wait_until


@needs_proc
def test_killing_a_process_kills_children_in_other_sessions(tmp_path: Path) -> None:
    script = "import subprocess, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    process = Process([sys.executable, "-c", script], tmp_path, os.environ, f"{uuid.uuid4()}/")
    wait_until(lambda: len(working_in(tmp_path)) == 2)
    process.kill()
    assert_none_is_left_in(tmp_path)
    assert not process.running


@needs_proc
def test_the_guard_ends_the_processes_of_a_killed_owner(tmp_path: Path) -> None:
    mark = f"{uuid.uuid4()}/"
    script = f"""
import os, signal, time
from pathlib import Path
from klms.processes import Guard, Process
guard = Guard({mark!r})
Process(["sleep", "600"], Path({str(tmp_path)!r}), os.environ, {mark!r})
print("started", flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"started\n"
        assert len(working_in(tmp_path)) == 1
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: working_in(tmp_path) == [])
