"""What a run folder survives, at length: 200 kills at random moments and 1,000 flipped bits. `make soak` runs this."""

import multiprocessing
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from klms.errors import RunFolderError
from klms.report.collect import collect
from klms.runs.run_folder import CHECKPOINT, CONFIG, DESCRIPTION, METRICS, TABLE, VERSIONS
from tests.runs.small_run import ROUNDS, result, run, run_quietly

KILLS = 200
FLIPS = 1000
pytestmark = pytest.mark.soak


def test_runs_that_are_killed_end_like_runs_that_are_not(tmp_path):
    """SIGKILL at random moments of a run, again and again until it is complete; then the next run."""
    run(tmp_path / "whole")
    expected = result(tmp_path / "whole")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.runs.warm_run"])
    rng = random.Random(0)
    for name in ("slow", "timed"):  # the first also waits for the process that the others are forked from
        started = time.monotonic()
        process = context.Process(target=run_quietly, args=(tmp_path / name,))
        process.start()
        process.join()
    longest = time.monotonic() - started
    kills, runs, reached = 0, 0, Counter()
    while kills < KILLS:
        folder, runs = tmp_path / f"killed-{runs}", runs + 1
        while True:
            process = context.Process(target=run_quietly, args=(folder,))
            process.start()
            process.join(rng.uniform(0, longest))
            if process.exitcode is None:
                process.kill()
                process.join()
            if process.exitcode == 0:
                break
            assert process.exitcode == -9
            kills += 1
            reached[len(result(folder)[0]) if (folder / CHECKPOINT).exists() else 0] += 1
        assert result(folder) == expected
        shutil.rmtree(folder)
    print(f"{kills} kills in {runs} runs, by rounds in the ledger: {dict(sorted(reached.items()))}")
    assert set(reached) >= set(range(ROUNDS))  # the kills came in every round


def test_every_flipped_bit_is_found_or_harmless(tmp_path):
    """Resume a run with one bit flipped somewhere: it is refused by a typed error, or ends as if nothing had happened.

    The report leaves out what is damaged and says so, or shows the same as before.
    """
    run(tmp_path / "whole", rounds=4)
    expected = result(tmp_path / "whole")
    half = tmp_path / "half"
    _interrupted(half, after=2)
    shown = _shown(half)
    rng, outcomes = random.Random(0), Counter()
    for _ in range(FLIPS):
        damaged = tmp_path / "damaged"
        shutil.copytree(half, damaged)
        name = rng.choice([CONFIG, VERSIONS, DESCRIPTION, METRICS, CHECKPOINT, TABLE])
        data = bytearray((damaged / name).read_bytes())
        bit = rng.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        (damaged / name).write_bytes(data)
        where = f"bit {bit} of {name}"
        assert _shown(damaged) in (shown, "damage is reported"), where
        found = _error_of_resuming(damaged)
        outcomes[name, "found" if found else "harmless"] += 1
        assert "\n" not in found, where
        assert found or result(damaged) == expected, where
        shutil.rmtree(damaged)
    print(f"{FLIPS} flips: {dict(sorted(outcomes.items()))}")
    assert outcomes[CHECKPOINT, "harmless"] == 0
    assert sum(outcomes.values()) == FLIPS


def _error_of_resuming(folder: Path) -> str:
    try:
        run(folder, rounds=4)
    except RunFolderError as error:
        return str(error)
    return ""


def _interrupted(folder: Path, after: int) -> None:
    class Stop(Exception):
        pass

    def stop(_, record):
        if record.round == after:
            raise Stop

    with pytest.raises(Stop):
        run(folder, rounds=4, progress=stop)


def _shown(folder: Path) -> object:
    """What a report shows of the run, seconds included."""
    found = collect([folder])
    if found.left_out or found.incomplete:
        return "damage is reported"
    (one,) = found.runs
    return one.settings, one.versions, one.records, one.description, one.bounds
