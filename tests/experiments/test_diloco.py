"""DiLoCo: few workers that are always there, without a server or with one."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from klms.errors import InvalidArgument
from klms.experiments import outcomes, pictures
from klms.experiments.diloco import diloco
from klms.experiments.diloco.channels import PowerSGD
from klms.experiments.diloco.diloco import NONE, WAYS, WORKERS, DilocoRun, Way
from klms.experiments.panel.channels import Names
from klms.experiments.panel.optimizers import Optimizer


def test_every_way_is_run_with_every_number_of_workers() -> None:
    assert len({str(one) for one in diloco.grid(seeds=2)}) == 2 * len(WORKERS) * len(WAYS)
    assert {one.way for one in diloco.grid(only=["trellis, 0.1 bits"])} == {NONE, Way("trellis", 0.1)}
    with pytest.raises(InvalidArgument, match="way of diloco"):
        diloco.grid(only=["trellis, 3 bits"])


def test_two_rounds_of_every_kind_are_resumed_counted_and_drawn(tmp_path: Path) -> None:
    file = tmp_path / "diloco.json"
    wanted = [
        DilocoRun(2, way, 0, rounds=2)
        for way in (NONE, Way("trellis", 0.22), Way("sparseloco", 0.22), Way("powersgd", rank=1))
    ]
    seen: list[DilocoRun] = []

    def report(one: DilocoRun, found: dict[str, Any]) -> None:
        assert diloco.summary(found).startswith("loss ")
        seen.append(one)

    outcomes.run_missing(diloco.NAME, wanted[:2], file, report)
    results = outcomes.run_missing(diloco.NAME, wanted, file, report)
    assert seen == wanted

    rows = {row.family: row for row in diloco.rows(results)}
    assert rows["none"].bits_sent == rows["none"].bits_received == 32
    for scheme in ("trellis", "sparseloco"):
        assert 0.2 < rows[scheme].bits_sent <= 0.222
        assert rows[scheme].bits_received == pytest.approx(rows[scheme].bits_sent)  # of the one other worker
    assert rows["trellis"].loss == pytest.approx(rows["none"].loss, rel=0.05)
    assert "trellis, 0.22 bits" in diloco.markdown(results)
    pictures.diloco(results, tmp_path / "diloco.png")


def test_a_run_that_ended_early_has_no_loss() -> None:
    (row,) = diloco.rows({"runs": {"4 workers; none; seed 0": {"error": "diverged"}}})
    assert row.loss == float("inf")


def test_nesterov_looks_one_step_ahead() -> None:
    update = np.array([1.0, -2.0])
    optimizer = Optimizer("Nesterov")
    assert np.allclose(optimizer.step(update), 0.7 * 1.9 * update)
    assert np.allclose(optimizer.step(update), 0.7 * (1 + 0.9 * 1.9) * update)


def test_powersgd_sends_matrices_of_low_rank_exactly_and_keeps_what_it_left_out() -> None:
    rng = np.random.default_rng(0)
    model = {"matrix": np.zeros((30, 20), np.float32), "vector": np.zeros(7, np.float32)}
    names = Names.of(model)
    trained = {"matrix": np.outer(rng.normal(size=30), rng.normal(size=20)), "vector": rng.normal(size=7)}
    channel = PowerSGD(model, names, 2, rank=1, seed=0)
    average = channel.average(lambda held, worker: trained, np.array([0.5, 0.5]))
    assert np.allclose(average.update, names.flat(trained), atol=5e-3)
    assert np.allclose(channel.left_out[0], names.flat(trained) - average.update, atol=1e-6)
    assert channel.uplink_bytes == channel.downlink_bytes == 2 * 2 * (30 + 20 + 7)
