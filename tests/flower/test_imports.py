"""Who needs what: the codec needs neither Flower nor torch, and Flower's two lines do not need torch."""

import subprocess
import sys

import pytest


def loaded(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after `code`."""
    shown = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return set(shown.stdout.split())


@pytest.mark.parametrize("name", ["klms", "klms.codec", "klms.cli", "klms.compressors.schemes"])
def test_importing_klms_loads_neither_flower_nor_torch(name):
    assert not loaded(f"import {name}") & {"flwr", "torch", "ray"}


def test_the_two_lines_do_not_load_torch():
    pytest.importorskip("flwr")
    modules = loaded("import klms.flower; klms.flower.compress(); klms.flower.Compressed")
    assert "flwr" in modules
    assert not modules & {"torch", "ray"}


def test_without_flower_the_error_says_what_to_install():
    code = "import sys; sys.modules['flwr'] = None\ntry:\n    import klms.flower\nexcept ImportError as e: print(e)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install -c constraints.txt '.[flower]'" in shown
