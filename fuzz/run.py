"""Fuzz targets, each in a process of its own: `python -m fuzz.run --seconds 60 codec frame`.

Each starts from its corpus in `fuzz/corpus`, to which `--keep` adds inputs that reach new code. Findings are written to
`fuzz/findings`; `python -m fuzz.run --replay FILE codec` reads one again. With `--record FILE`, what was clean for that
long is noted there and skipped by the next call, so that hours of fuzzing can be spread over days.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

MODULES = ("fuzz.messages", "fuzz.transport", "fuzz.files")
FOLDER = Path(__file__).parent
LARGEST_INPUT = 8192
SECONDS_PER_INPUT = 10
MEGABYTES = 4096
MOST_KEPT, LARGEST_KEPT = 24, 1024  # files of a target's corpus, and bytes of each


def main() -> int:
    """Run what the command line asks for, and return 1 if there was a finding."""
    modules = {name: module for module in MODULES for name in import_module(module).TARGETS}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", choices=[*modules, []], help=", ".join(modules))
    parser.add_argument("--seconds", type=int, default=60, help="time for each target")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--record", type=Path, help="JSON file of what was clean, which is not fuzzed again")
    parser.add_argument("--keep", action="store_true", help="add inputs that reach new code to the corpus")
    parser.add_argument("--replay", type=Path, help="only read this file")
    given = parser.parse_args()
    if given.replay:
        import_module(modules[given.targets[0]]).TARGETS[given.targets[0]].read(given.replay.read_bytes())
        return 0
    record = json.loads(given.record.read_text()) if given.record and given.record.exists() else {}
    chosen = given.targets or list(modules)
    names = [name for name in chosen if record.get(name, {"seconds": 0})["seconds"] < given.seconds]
    failed = []
    with ThreadPoolExecutor(given.jobs) as pool:
        outcomes = pool.map(lambda name: fuzz(modules[name], name, given.seconds, keep=given.keep), names)
        for name, inputs in zip(names, outcomes, strict=True):
            if inputs is None:
                failed.append(name)
            elif given.record:
                record[name] = {"seconds": given.seconds, "inputs": inputs}
                ordered = {name: record[name] for name in modules if name in record}
                given.record.write_text(json.dumps(ordered, indent=1) + "\n")
    skipped = f" ({len(chosen) - len(names)} were clean before)" if len(names) < len(chosen) else ""
    print(f"{len(names)} targets, {given.seconds} s each{skipped}; findings in: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


def fuzz(module: str, name: str, seconds: int, *, keep: bool) -> int | None:
    """Fuzz one target; return how many inputs were read, or nothing if there was a finding."""
    findings, corpus = FOLDER / "findings", FOLDER / "corpus" / name
    with tempfile.TemporaryDirectory() as work:
        grown, seeds = Path(work) / "grown", Path(work) / "seeds"
        for folder in (grown, seeds, corpus, findings):
            folder.mkdir(parents=True, exist_ok=True)
        options = [f"-max_total_time={seconds}", f"-max_len={LARGEST_INPUT}", f"-timeout={SECONDS_PER_INPUT}"]
        options += [f"-rss_limit_mb={MEGABYTES}", f"-artifact_prefix={findings}/{name}-", "-print_final_stats=1"]
        command = [sys.executable, "-m", "fuzz.one", module, name, *options, str(grown), str(corpus), str(seeds)]
        # Kernels as plain Python are instrumented, and an index out of bounds is an error there instead of a crash.
        environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
        executed = re.findall(r"number_of_executed_units: *(\d+)", done.stderr)
        clean = done.returncode == 0 and bool(executed)
        outcome = "clean" if clean else f"FOUND (exit code {done.returncode})"
        print(f"{name}: {executed[0] if executed else 'no'} inputs, {outcome}", flush=True)
        if not clean:
            print(done.stderr[-3000:], flush=True)
        elif keep:
            room = MOST_KEPT - len(list(corpus.iterdir()))
            found = sorted(grown.iterdir(), key=lambda path: path.stat().st_size)
            for path in [path for path in found if path.stat().st_size <= LARGEST_KEPT][: max(0, room)]:
                shutil.copy(path, corpus)
    return int(executed[0]) if clean else None


if __name__ == "__main__":
    sys.exit(main())
