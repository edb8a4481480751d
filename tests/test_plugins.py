"""A scheme and a method in a package of somebody else's, found by their entry points."""

import os
import subprocess
import sys

import pytest

SCHEME = """
from dataclasses import dataclass
import numpy as np
from klms.codec import Decoded
from klms.compressors.base import Compressor
from klms.compressors.envelope import unwrap, wrap
from klms.compressors.layout import Layout
from klms.compressors.scheme import Scheme, Settings
from klms.methods import dense
from klms.plugins import FIRST_OWN_NUMBER

@dataclass(frozen=True)
class Halves(Compressor):
    layout: Layout

    def _encode(self, update, side, key, rng):
        return wrap(FIRST_OWN_NUMBER, self.d, update.astype("<f2").tobytes(), key)

    def _decode(self, message, side, key):
        return Decoded(np.frombuffer(unwrap(message, FIRST_OWN_NUMBER, self.d, key), "<f2").astype(np.float32))

SCHEME = Scheme("halves", "Half precision", "a stranger", Settings, lambda layout, settings, threads: Halves(layout),
    wire_number=FIRST_OWN_NUMBER)
SIGNS = Scheme("own-signs", "Signs of my own", "a stranger", Settings, lambda layout, settings, threads: Halves(layout),
    default_step=0.25, wire_number=FIRST_OWN_NUMBER + 1)
METHOD = dense.entry(SCHEME, "fedhalves")
"""

USE = """
import numpy as np, klms
from klms.methods.table import METHODS
from klms.runs.settings import resolve
server = klms.Server({"w": np.zeros((200, 100), np.float32)}, scheme="halves", down=32)
client = klms.Client()
arrays = client.receive(server.request("a"))
arrays["w"] += 0.5
reply = client.reply(arrays)
print(len(reply) < 2.1 * 20_000, float(server.receive("a", reply)["w"].mean()))
print("halves" in METHODS, "fedhalves" in METHODS, resolve("fedhalves").method)
print(resolve("own-signs").server_lr)
"""


def installed(folder, points, name="stranger", source=SCHEME):
    """Put a package with these entry points where Python finds it."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [line for group, value in points.items() for line in (f"[{group}]", value)]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def run(folder, program):
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_a_scheme_and_a_method_of_another_package_are_used_like_ours(tmp_path):
    schemes = "halves = stranger:SCHEME\nsigns = stranger:SIGNS"
    points = {"klms.schemes": schemes, "klms.methods": "fedhalves = stranger:METHOD"}
    installed(tmp_path, points)
    found = run(tmp_path, USE)
    assert found.stdout.split("\n")[:3] == ["True 0.5", "True True fedhalves", "0.25"], found.stderr
    listed = run(tmp_path, "from klms.cli import app; app(['methods'])").stdout
    assert "fedhalves" in listed
    assert "Half precision" in listed


@pytest.mark.parametrize(
    ("point", "words"),
    [
        ("halves = stranger:Halves", "stranger: stranger:Halves is not a Scheme"),
        ("x = other:SCHEME", "'halves' of klms"),
    ],
)
def test_what_cannot_be_used_names_its_package(tmp_path, point, words):
    installed(tmp_path, {"klms.schemes": "halves = stranger:SCHEME" if "other" in point else point})
    if "other" in point:
        installed(tmp_path, {"klms.schemes": point}, "other", "from stranger import SCHEME")
    found = run(tmp_path, "import klms.compressors.schemes")
    assert found.returncode == 1
    assert words in found.stderr
