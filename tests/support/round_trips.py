"""Small messages of every scheme and family, sent and received; as a script, printed, for comparison."""

import json
import sys
from collections.abc import Callable, Iterator
from types import FrameType

import numba
import numpy as np

from klms import Categorical, Codec, SharedKey, fixed_blocks
from klms.compressors.base import Compressor, Side, Vector
from klms.compressors.block_coder import BlockSettings
from klms.compressors.klms_gaussian import KLMSGaussian
from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES
from klms.exchange.robust import Robust

LAYOUT = Layout(("weight", "bias"), ((20, 15), (50,)))
KEY = SharedKey(seed=1, round=2, client=3)
SMALL = {"bits": 4, "target": 3.0, "rate": 0.75, "bucket": 64, "levels": 3, "keep": 0.1}
FURTHER: dict[str, list[dict[str, object]]] = {
    "qsgd": [{"levels": 1, "bucket": 0}, {"levels": 2**20}],
    "qsgd-klms": [{"bits": 2, "memory": 3, "group": 3, "target": 2.0, "rescale": True}],
    "mask-klms": [
        {"bits": 3, "memory": 2, "target": 2.0, "selection": "matched"},
        {"bits": 3, "memory": 2, "target": 2.0, "selection": "greedy"},
        {"bits": 3, "fixed": 20, "selection": "greedy"},
    ],
    "signsgd-klms": [{"bits": 4, "target": 3.0, "selection": "matched"}],
    "eden": [{"rate": 0.3}, {"rate": 2.5}],
    "trellis": [{"rate": 0.1}, {"rate": 3.0, "effort": "best"}],
}
"""Settings at which a scheme takes other ways through its code."""
UPDATES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "heavy": lambda rng, d: rng.standard_t(1, d),
    "zero": lambda rng, d: np.zeros(d),
    "sparse": lambda rng, d: rng.normal(0, 1, d) * (rng.random(d) < 0.05),
    "large": lambda rng, d: rng.normal(0, 1e11, d),
}


def small(name: str, **given: object) -> Compressor:
    """Return a scheme at settings at which few candidates are drawn."""
    scheme = SCHEMES[name]
    values = {setting: value for setting, value in SMALL.items() if setting in scheme.settings.model_fields}
    return scheme.create(LAYOUT, values | given, threads=1)


def material(name: str, compressor: Compressor, d: int = LAYOUT.d) -> tuple[Vector, Side]:
    """Return an update or mask probabilities, whichever the scheme codes, and side information to code it with."""
    rng = np.random.default_rng(0)
    if SCHEMES[name].codes == "masks":
        theta = np.full(d, 0.5, dtype=np.float32)
        return rng.uniform(0.05, 0.95, d).astype(np.float32), {**compressor.start(), "theta": theta}
    return rng.normal(0, 0.1, d).astype(np.float32), compressor.start()


def sent(compressor: Compressor, update: Vector, side: Side) -> tuple[bytes, np.ndarray]:
    """Return the message and the decoded vector."""
    message = compressor.encode(update, side, key=KEY, rng=np.random.default_rng(5))
    return message, compressor.decode(message, side, key=KEY).vector


def round_trip(name: str) -> tuple[bytes, np.ndarray]:
    compressor = small(name)
    return sent(compressor, *material(name, compressor))


def all_round_trips() -> Iterator[tuple[str, tuple[bytes, np.ndarray]]]:
    """Yield messages and vectors by name: every scheme at several settings, on several kinds of updates."""
    for name, scheme in SCHEMES.items():
        for number, given in enumerate([{}, *FURTHER.get(name, [])]):
            compressor = small(name, **given)
            update, side = material(name, compressor)
            yield f"{name} {number}", sent(compressor, update, side)
            if scheme.codes == "updates":
                for kind, make in UPDATES.items():
                    odd = make(np.random.default_rng(1), LAYOUT.d).astype(np.float32)
                    yield f"{name} {number} {kind}", sent(compressor, odd, side)
    for selection, bits, memory in (("sample", 3, 0), ("sample", 3, 2), ("matched", 3, 0), ("greedy", 8, 1)):
        settings = BlockSettings(bits=bits, memory=memory, selection=selection, target=float(bits))
        gaussian = KLMSGaussian(0.3, settings.coder(LAYOUT.d, 1))
        update = material("float32", gaussian)[0]
        yield (
            f"gaussian {selection} {bits} {memory}",
            sent(gaussian, update, gaussian.start()),
        )
    four = [Categorical(np.random.default_rng(seed).dirichlet([1.0] * 4, 60), [0.0, 1.0, 2.0, 3.0]) for seed in (5, 6)]
    blocks = fixed_blocks(60, 4)
    message = Codec(bits=4).encode(*four, blocks, key=KEY, rng=np.random.default_rng(5))
    yield "categorical", (message, Codec().decode(message, four[1], key=KEY, blocks=blocks))
    vectors = list(np.random.default_rng(2).normal(0, 1, (7, LAYOUT.d)).astype(np.float32))
    yield "robust", (b"", Robust(0.25).average(vectors).vector)


def hexadecimal(trip: tuple[bytes, np.ndarray]) -> list[str]:
    return [trip[0].hex(), np.ascontiguousarray(trip[1]).tobytes().hex()]


def main() -> None:
    """Print what the round trips give, and which functions of klms were called as Python."""
    called: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "klms" in frame.f_code.co_filename:
            called.add(f"{frame.f_globals.get('__name__')}.{frame.f_code.co_name}")

    sys.setprofile(note)
    found = {name: hexadecimal(trip) for name, trip in all_round_trips()}
    sys.setprofile(None)
    json.dump({"compiled": not numba.config.DISABLE_JIT, "trips": found, "called": sorted(called)}, sys.stdout)


if __name__ == "__main__":
    main()
