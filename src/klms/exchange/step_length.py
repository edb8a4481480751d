"""How long the steps of a coded model are, where few clients at few bits leave much noise in them.

Noise worsens the model that clients start from, and they answer by larger updates, whose noise is larger still.
Sketches of errors (`echo.py`) do not show that, since these updates have other directions. A step of a share `s` of its
length has `s^2` of its noise, which is `s` of the noise per progress, as with a smaller learning rate of the server.
"""

from collections.abc import Sequence

from klms.compressors.base import least_noise

_BEARABLE = 12.0  # docs/downlink.md has what this was chosen by


def noise_of_steps(up: Sequence[float], down: float) -> float:
    """Return the energy of the noise in a step of the model, in units of the energy of the clients' mean update.

    `up` has the bits per parameter of every client's update, `down` are those of the step. The downlink codes the noise
    of the uplink, too.

    >>> round(noise_of_steps([0.1] * 10, 0.1), 1), round(noise_of_steps([1.0] * 10, 1.0), 1)
    (11.9, 0.4)
    """
    averaged = sum(map(least_noise, up)) / len(up) ** 2 if up else 0.0
    return (1 + averaged) * (1 + least_noise(down)) - 1


def step_length(up: Sequence[float], down: float) -> float:
    """Return the share of the difference that a step should cover: 1 where its noise is bearable.

    >>> step_length([0.1] * 10, 0.1), round(step_length([0.1] * 5, 0.1), 2)
    (1.0, 0.7)
    """
    return min(1.0, _BEARABLE / noise_of_steps(up, down))
