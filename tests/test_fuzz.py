"""Inputs that fuzzing has kept, read once more: `make fuzz` looks for new ones."""

from contextlib import suppress
from importlib import import_module

import pytest

pytest.importorskip("flwr")
pytest.importorskip("torch")

from fuzz.run import FOLDER, MODULES
from klms.errors import KLMSError

TARGETS = {name: target for module in MODULES for name, target in import_module(module).TARGETS.items()}


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_is_read_or_refused_with_a_typed_error(name):
    for seed in TARGETS[name].seeds():
        TARGETS[name].read(seed)
    for path in sorted((FOLDER / "corpus" / name).glob("*")):
        with suppress(KLMSError):
            TARGETS[name].read(path.read_bytes())


def test_every_folder_of_the_corpus_belongs_to_a_target():
    assert {path.name for path in (FOLDER / "corpus").iterdir()} <= set(TARGETS)
