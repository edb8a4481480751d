"""`--profile paper` of every experiment: two rounds of whole models, on small files in the official formats (soak)."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.experiments import catalogue
from tests.data import files
from tests.support.small_data import colours, write_idx, write_mnist


def write_all(folder: Path) -> Path:
    """Every data set that a paper profile names."""
    rng = np.random.default_rng(0)
    write_mnist(folder / "mnist", train=300, test=40)
    for name in ("emnist", "cifar10", "cifar100", "stackoverflow"):
        (folder / name).mkdir(parents=True)
    for half, n in (("train", 300), ("test", 40)):
        write_idx(folder / "emnist" / f"emnist-balanced-{half}-images-idx3-ubyte", rng.integers(0, 255, (n, 28, 28)))
        write_idx(folder / "emnist" / f"emnist-balanced-{half}-labels-idx1-ubyte", np.arange(n) % 47)
    for name in [f"data_batch_{n}.bin" for n in range(1, 6)] + ["test_batch.bin"]:
        pixels, labels = colours(60 if name.startswith("data") else 20, 10, rng)
        (folder / "cifar10" / name).write_bytes(np.column_stack([labels, pixels]).tobytes())
    for name, n in (("train.bin", 200), ("test.bin", 20)):
        pixels, labels = colours(n, 100, rng)
        (folder / "cifar100" / name).write_bytes(np.column_stack([labels // 5, labels, pixels]).tobytes())
    for half, count in (("train", 120), ("test", 4)):
        (folder / "stackoverflow" / half).mkdir()
        users = {
            f"{half}{u}": ([f"the cat number {u} sat on the mat and saw a dog"] * 2, [0] * 2) for u in range(count)
        }
        files.leaf(folder / "stackoverflow" / half / "a.json", users)
    return folder


@pytest.mark.soak
@pytest.mark.parametrize("name", catalogue.TRAINED)
def test_two_rounds(name, tmp_path):
    data = write_all(tmp_path / "data")
    arguments = ["experiment", "run", name, "--profile", "paper", "--rounds", "2", "--seeds", "1", "--workers", "2"]
    shown = CliRunner().invoke(app, [*arguments, "--data-dir", str(data), "--runs", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    folders = list((tmp_path / "runs").rglob("metrics.jsonl"))
    assert len(folders) == len(catalogue.load(name).cells("paper", seeds=1))
    for folder in folders:
        assert len(folder.read_text().splitlines()) == 2
