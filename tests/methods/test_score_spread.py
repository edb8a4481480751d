"""The first probabilities of FedPM."""

import numpy as np

from klms.methods.fedpm import FedPM, FedPMSettings
from klms.runs.settings import resolve


def test_scores_start_at_nought_or_spread_by_the_seed():
    assert resolve("fedpm").score_spread == 0

    class Small:
        layout = type("Layout", (), {"d": 4000})

    def first(spread: float, seed: int) -> np.ndarray:
        method = FedPM.__new__(FedPM)
        vars(method).update(learner=Small, seed=seed, settings=FedPMSettings(score_spread=spread))
        return method.first_theta()

    np.testing.assert_array_equal(first(0.0, 1), np.full(4000, 0.5, np.float32))
    spread = first(1.0, 1)
    scores = np.log(spread / (1 - spread))
    assert abs(scores.std() - 1) < 0.05
    assert spread.min() >= 0.01
    assert spread.max() <= 0.99
    np.testing.assert_array_equal(spread, first(1.0, 1))
    assert not np.array_equal(spread, first(1.0, 2))
