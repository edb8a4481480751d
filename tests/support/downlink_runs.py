"""Short runs of every kind for tests of the downlink, computed once for each combination of settings."""

from functools import cache

import numpy as np
import pytest

from klms.engine import local
from klms.engine.federation import Federation
from klms.runs.settings import resolve

torch = pytest.importorskip("torch")

RUNS = {
    "fedpm-klms": {},
    "qsgd-klms": {},
    "trellis": {"rate": 1.0},
    "fedpm-klms reset": {"reset": 3},
    "marina": {"full": 0.05},
    "sgld-klms": {},
}
INPUTS = 20


def points(seed, count=40):
    x = np.random.default_rng(seed).standard_normal((count, INPUTS)).astype(np.float32)
    return x, (x[:, 0] - 2 * x[:, 1] > 0).astype(np.int64)


def config_of(run, **given):
    common = {"clients": 6, "per_round": 2, "rounds": 8, "epochs": 1, "batch": 20, "evaluate_every": 4, "seed": 5}
    own = {"data": "own", "model": "own"}
    return resolve(run.split()[0], profile="small", given={**common, **own, **RUNS.get(run, {}), **given})


def federation_of(config, hidden=250, count=40):
    """A network of 23 parameters per hidden unit; by default enough of them for a snapshot to use a table of values."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(INPUTS, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 2))
    return Federation.of(config, model, [points(client, count) for client in range(config.clients)], points(99, 100))


def trained(config, federation, state=None, workers=1):
    return list(local.run(federation, config, state or federation.method.init(), workers))


@cache
def run_of(run, **given):
    config = config_of(run, **given)
    federation = federation_of(config)
    return config, federation, trained(config, federation)


def figures(results, *without):
    return [result.record.model_dump(exclude={"seconds", *without}) for result in results]


def arrays(state):
    return {name: np.asarray(array).tobytes() for name, array in {**state.shared, **state.private}.items()}


def states_before(run, **given):
    """The states from which the rounds start."""
    _, federation, results = run_of(run, **given)
    return [federation.method.init(), *(result.state for result in results)]
