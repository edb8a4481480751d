import json

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.benchmarks import history
from klms.cli import app
from klms.engine.federation import Federation
from klms.runs.settings import resolve

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A small network on points, instead of LeNet on MNIST."""

    def federation_of(kind, **given):
        own = {"clients": 2, "epochs": 1, "batch": 20, "data": "own", "model": "own"}
        config = resolve(given.pop("method"), profile="small", given={**own, **given})
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(20, 200), torch.nn.ReLU(), torch.nn.Linear(200, 2))
        x = np.random.default_rng(0).standard_normal((80, 20)).astype(np.float32)
        y = (x[:, 0] > x[:, 1]).astype(np.int64)
        federation = Federation.of(config, model, [(x[:40], y[:40]), (x[40:], y[40:])])
        return federation, federation.method

    monkeypatch.setattr(history, "federation_of", federation_of)


def test_rows_compare_messages_of_the_same_updates():
    rows = list(history.run(rates=[0.5, 2.0], rounds=3))
    assert [(row.rate, row.round) for row in rows] == [(0.5, 2), (0.5, 3), (2.0, 2), (2.0, 3)]
    for row in rows:
        assert row.bits == pytest.approx(row.plain_bits, rel=0.1)
        assert 0 < row.ratio < 1.2
    assert json.loads(json.dumps(history.as_json(rows)))[0]["kind"] == "lenet"


def test_the_command_prints_them():
    done = CliRunner().invoke(app, ["bench", "history", "--rate", "1", "--rounds", "2", "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)
    assert row["round"] == 2
    assert row["ratio"] == pytest.approx(row["error"] / row["plain_error"])
