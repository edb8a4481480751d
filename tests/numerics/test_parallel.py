import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot confine a process to one core")
def test_a_process_confined_to_one_core_counts_one():
    program = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from klms.numerics.parallel import cores; print(cores())"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "1"
