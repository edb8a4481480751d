"""The panel: small federations of many kinds over real bytes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from klms.errors import InvalidArgument
from klms.exchange import quality
from klms.exchange.quality import TARGET
from klms.experiments import outcomes
from klms.experiments.panel import panel
from klms.experiments.panel.cells import ABLATIONS, CODINGS, FEDERATIONS, STOCK, Coding, Federation
from klms.experiments.panel.optimizers import Optimizer
from klms.experiments.panel.run import run

RATINGS = Federation("factors", 3, rounds=4)


def test_the_panel_has_many_kinds_of_models_optimizers_and_numbers_of_clients() -> None:
    assert len({one.kind for one in FEDERATIONS}) >= 8
    assert {one.clients for one in FEDERATIONS} == {3, 5, 10}
    assert {one.optimizer for one in FEDERATIONS} == {"FedAvg", "FedAvgM", "FedAdam"}
    assert any(one.skewed for one in FEDERATIONS)
    assert len({str(one) for one in panel.grid()}) == 3 * len(FEDERATIONS) * len(CODINGS)


def test_a_run_is_deterministic_and_holds_its_quality() -> None:
    first = run(RATINGS, Coding(quality=1.0), 0)
    assert first == run(RATINGS, Coding(quality=1.0), 0)
    assert first["times_smaller_total"] > 5
    assert TARGET / 2 < first["rounds"][-1]["harm"] < 2 * TARGET


def test_another_order_is_another_run_without_compression() -> None:
    usual = run(RATINGS, STOCK, 0)
    other = run(RATINGS, Coding(reordered=True), 0)
    assert other["value"] != usual["value"]
    assert other["value"] == pytest.approx(usual["value"], rel=0.2)
    assert other["times_smaller_total"] == 1


def test_more_quality_takes_more_bytes() -> None:
    strict = run(RATINGS, Coding(quality=2.0), 0)
    lax = run(RATINGS, Coding(quality=0.5), 0)
    assert strict["uplink_bytes"] + strict["downlink_bytes"] > lax["uplink_bytes"] + lax["downlink_bytes"]


def test_runs_are_resumed(tmp_path: Path) -> None:
    file = tmp_path / "results" / "panel.json"  # in a folder that does not exist yet
    wanted = [panel.PanelRun(RATINGS, coding, 0) for coding in (STOCK, Coding(bits=1.0))]
    seen: list[panel.PanelRun] = []

    def report(one: panel.PanelRun, found: dict[str, Any]) -> None:
        assert panel.summary(found).endswith("times smaller")
        seen.append(one)

    outcomes.run_missing(panel.NAME, wanted[:1], file, report)
    outcomes.run_missing(panel.NAME, wanted, file, report)
    outcomes.run_missing(panel.NAME, wanted, file, report)
    assert seen == wanted
    text = panel.markdown(outcomes.read(panel.NAME, file))
    assert "factors, 3 clients, FedAvg" in text
    assert "1 bits" in text


def test_only_some_codings_are_run_with_what_they_are_compared_with() -> None:
    assert {one.coding for one in panel.grid(only=["1 bits"])} == {STOCK, Coding(bits=1.0)}
    with pytest.raises(InvalidArgument, match="coding of the panel"):
        panel.grid(only=["2 bits"])


def test_a_loss_is_in_points_or_in_per_cent() -> None:
    assert panel.lost({"value": 90.0}, {"metric": "accuracy", "value": 91.0}) == pytest.approx(1)
    assert panel.lost({"value": 1.1}, {"metric": "loss", "value": 1.0}) == pytest.approx(10)
    assert panel.lost({"error": "diverged"}, {"metric": "loss", "value": 1.0}) == float("inf")


def test_optimizers_of_the_server() -> None:
    update = np.array([1.0, -2.0])
    assert np.array_equal(Optimizer("FedAvg").step(update), update)
    momentum = Optimizer("FedAvgM")
    momentum.step(update)
    assert np.allclose(momentum.step(update), 1.7 * update)
    assert np.allclose(Optimizer("FedAdam").step(update), [0.00990099, -0.00995025], atol=1e-6)
    with pytest.raises(InvalidArgument, match="FedSGD"):
        Optimizer("FedSGD")


def test_an_ablation_changes_a_constant_for_its_run_only() -> None:
    without = Coding(quality=1.0, constant=("WEIGHTS", 1.0))
    assert without in ABLATIONS
    usual = run(RATINGS, Coding(quality=1.0), 0)
    changed = run(RATINGS, without, 0)
    assert quality.WEIGHTS > 0
    assert changed["downlink_bytes"] < usual["downlink_bytes"]
    assert {one.coding for one in panel.grid(only=["WEIGHTS 1"])} == {STOCK, without}
    runs = {f"{RATINGS}; {name}; seed 0": found for name, found in (("quality 1", usual), ("WEIGHTS 1", changed))}
    runs[f"{RATINGS}; stock; seed 0"] = run(RATINGS, STOCK, 0)
    assert "| WEIGHTS 1 | WEIGHTS 5 | 1 |" in panel.ablations({"runs": runs})
