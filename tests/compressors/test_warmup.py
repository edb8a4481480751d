import subprocess
import sys

import numpy as np
from numba.core.dispatcher import Dispatcher

import klms
from klms.compressors.warmup import compile_kernels


def compiled() -> dict[str, int]:
    """Return how many versions of every kernel are compiled, or loaded from the cache, in this process."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("klms.")]
    kernels = [value for module in modules for value in vars(module).values() if isinstance(value, Dispatcher)]
    return {f"{kernel.py_func.__module__}.{kernel.__name__}": len(kernel.signatures) for kernel in kernels}


def use_everything() -> None:
    rng, d = np.random.default_rng(0), 5000
    key = klms.SharedKey(1, 2, 3)
    low_rank = np.outer(rng.standard_normal(50), rng.standard_normal(100)) + 0.1 * rng.standard_normal((50, 100))
    for update in (low_rank, rng.standard_normal((50, 100))):
        for rate in (0.02, 1.0, 6.0):
            message = klms.compress({"w": update, "b": np.zeros(3)}, rate, key=key)
            klms.decompress(message, key=key)
    law = rng.dirichlet(np.ones(3), d)
    pairs = [
        (klms.Bernoulli(rng.uniform(0.2, 0.8, d)), klms.Bernoulli(np.full(d, 0.5))),
        (klms.Categorical(law, (-1, 0, 1)), klms.Categorical(np.full((d, 3), 1 / 3, np.float32), (-1, 0, 1))),
        (klms.Gaussian(rng.normal(0, 0.1, d), 1.0), klms.Gaussian(np.zeros(d), 1.0)),
    ]
    for q, p in pairs:
        blocks = klms.adaptive_blocks(q.kl(p), target=4.0)
        for codec in (klms.Codec(bits=8), klms.Codec(bits=4, memory=4)):
            message = codec.encode(q, p, blocks, key=key, rng=rng, send_blocks=True)
            codec.decode(message, p, key=key)


def left_to_compile() -> list[str]:
    """Return the kernels of which a version is missing after the warmup."""
    assert "gaussian" in list(compile_kernels())
    before = compiled()
    use_everything()
    return [name for name, versions in compiled().items() if versions != before.get(name)]


def test_nothing_is_left_to_compile():
    """In a process of its own: here, other tests have compiled what they need."""
    script = "from tests.compressors.test_warmup import left_to_compile; print(left_to_compile())"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True)
    assert done.stdout == "[]\n"
