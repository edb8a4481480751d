import subprocess
import sys

WITHOUT_TORCH = (
    "klms",
    "klms.methods.table",
    "klms.engine.ledger",
    "klms.engine.federation",
    "klms.runs.run_folder",
    "klms.runs.federate",
    "klms.report.document",
    "klms.cli",
)


def test_nothing_but_training_needs_torch():
    """Importing torch takes seconds, and servers, reports and the command line can do without."""
    script = f"import sys, {', '.join(WITHOUT_TORCH)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], timeout=300).returncode == 0
