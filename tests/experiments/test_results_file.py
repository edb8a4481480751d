"""Results files: what is merged into them, over several sessions and machines."""

import copy
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.errors import InvalidArgument
from klms.experiments import catalogue, grid, results_file
from klms.experiments.results import file_name
from tests.experiments.tiny import experiment

HERE, THERE = {"torch": "2.13", "numpy": "2.4"}, {"torch": "2.12", "numpy": "2.4"}


def results(rows, versions=HERE):
    """Results on MNIST: settings and accuracies by seed, for every row."""

    def run(accuracy):
        return {"accuracy": accuracy, "bits_per_parameter": 0.1, "versions": versions}

    made = {
        row: {
            "config": {"method": "fedavg", "lr": lr},
            "examples": {"train": 60, "test": 10},
            "seeds": {seed: run(accuracy) for seed, accuracy in seeds.items()},
        }
        for row, (lr, seeds) in rows.items()
    }
    return {"mnist": made}


def merge(old, new, **how):
    """The results with the new runs, and what became of these."""
    merged = copy.deepcopy(old)
    return merged, results_file.merge(merged, new, **how)


def accuracies(found):
    return {
        row: {seed: run["accuracy"] for seed, run in entry["seeds"].items()} for row, entry in found["mnist"].items()
    }


def test_rows_and_seeds_of_both_are_in_the_file():
    old = results({"a": (0.1, {"0": 0.5}), "b": (0.1, {"0": 0.6})})
    merged, changes = merge(old, results({"a": (0.1, {"1": 0.7}), "c": (0.1, {"0": 0.8})}))
    assert accuracies(merged) == {"a": {"0": 0.5, "1": 0.7}, "b": {"0": 0.6}, "c": {"0": 0.8}}
    assert (changes.added, changes.kept, changes.replaced) == (["a, mnist, seed 1", "c, mnist, seed 0"], [], [])


@pytest.mark.parametrize(("replace", "left"), [(False, 0.5), (True, 0.7)])
def test_a_run_of_equal_settings_is_kept_unless_it_is_to_be_replaced(replace, left):
    old = results({"a": (0.1, {"0": 0.5})})
    merged, changes = merge(old, results({"a": (0.1, {"0": 0.7})}), replace=replace)
    assert accuracies(merged) == {"a": {"0": left}}
    assert (changes.kept, changes.replaced) == (([], ["a, mnist, seed 0"]) if replace else (["a, mnist, seed 0"], []))
    assert merge(old, old, replace=True)[1].kept == ["a, mnist, seed 0"]  # there is nothing to replace


def test_a_row_of_other_settings_is_replaced_with_all_its_seeds():
    old = results({"a": (0.1, {"0": 0.5, "1": 0.6}), "b": (0.1, {"0": 0.6})})
    merged, changes = merge(old, results({"a": (0.2, {"0": 0.7})}))
    assert accuracies(merged) == {"a": {"0": 0.7}, "b": {"0": 0.6}}
    assert changes.replaced == ["a, mnist, seed 0 (a row with other lr)"]
    assert str(changes) == "replaced a, mnist, seed 0 (a row with other lr)"


def test_a_part_of_the_data_is_another_setting():
    old, new = results({"a": (0.1, {"0": 0.5})}), results({"a": (0.1, {"0": 0.7})})
    new["mnist"]["a"]["examples"]["train"] = 34
    merged, changes = merge(old, new)
    assert changes.replaced == ["a, mnist, seed 0 (a row with other number of train examples)"]
    assert merged["mnist"]["a"]["examples"] == {"train": 34, "test": 10}
    del old["mnist"]["a"]["examples"]  # results of older releases do not have the numbers
    assert merge(old, new)[1].kept == ["a, mnist, seed 0"]


def test_a_setting_that_is_younger_than_the_file_had_its_default():
    old, new = results({"a": (0.1, {"0": 0.5})}), results({"a": (0.1, {"0": 0.7})})
    new["mnist"]["a"]["config"]["memory"] = 0
    assert merge(old, new)[1].kept
    new["mnist"]["a"]["config"]["memory"] = 4
    assert merge(old, new)[1].replaced


def test_runs_of_other_versions_say_so(tmp_path):
    file, tiny = tmp_path / "tiny-small.json", experiment(tmp_path)
    merged, _ = merge(
        results({"a": (0.1, {"0": 0.5}), "b": (0.1, {"0": 0.6})}), results({"a": (0.1, {"1": 0.7})}, THERE)
    )
    results_file.write(file, tiny, "small", copy.deepcopy(merged))
    written = json.loads(file.read_text())
    assert written["versions"] == HERE
    assert written["data"]["mnist"]["a"]["seeds"] == {
        "0": {"accuracy": 0.5, "bits_per_parameter": 0.1},
        "1": {"accuracy": 0.7, "bits_per_parameter": 0.1, "versions": THERE},
    }
    assert results_file.read(file) == merged
    most, _ = merge(merged, results({"b": (0.1, {"1": 0.7, "2": 0.7})}, THERE))
    results_file.write(file, tiny, "small", most)
    written = json.loads(file.read_text())
    assert written["versions"] == THERE
    assert written["data"]["mnist"]["a"]["seeds"]["0"]["versions"] == HERE


def test_a_file_is_as_in_the_experiment_whenever_its_runs_came_in(mnist, tmp_path):
    tiny, file = experiment(mnist), tmp_path / "results" / "tiny-small.json"
    cells = tiny.cells("small", tmp_path, only=["fedavg", "one"], seeds=2)
    first, rest = cells[-1:], cells[:-1]  # a second seed comes in first
    for some in (first, rest):
        grid.run_cells(some, workers=1, report=lambda cell: None)
        changes = results_file.commit(file, tiny, "small", some)
        assert len(changes.added) == len(some)
    found = json.loads(file.read_text())
    rows = found["data"]["mnist"]
    assert {row: list(entry["seeds"]) for row, entry in rows.items()} == {"fedavg": ["0", "1"], "one": ["0"]}
    assert list(rows) == ["fedavg", "one"]
    assert rows["fedavg"]["examples"] == {"train": 300, "test": 100}
    assert rows["fedavg"]["config"]["rounds"] == 3
    assert len(rows["fedavg"]["series"]["bits_per_parameter"]) == 3
    before = file.stat().st_mtime_ns
    assert len(results_file.commit(file, tiny, "small", cells).kept) == 3
    assert file.stat().st_mtime_ns == before  # nothing has changed


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"data": {'])
def test_what_is_no_results_file_is_not_overwritten(tmp_path, content):
    file = tmp_path / "tiny-small.json"
    file.write_text(content)
    with pytest.raises(InvalidArgument, match="not a results file"):
        results_file.commit(file, experiment(tmp_path), "small", [])
    assert file.read_text() == content


DAMAGE = {
    "data": [],
    "data.mnist": 3,
    "data.mnist.a": [],
    "data.mnist.a.config": [["lr", 0.1]],
    "data.mnist.a.examples": [60],
    "data.mnist.a.examples.train": "60",
    "data.mnist.a.seeds": {"first": {"accuracy": 0.5, "bits_per_parameter": 0.1}},
    "data.mnist.a.seeds.0": 0.5,
    "data.mnist.a.seeds.0.accuracy": float("nan"),
    "data.mnist.a.seeds.0.bits_per_parameter": None,
    "data.mnist.a.seeds.0.nll": "low",
    "data.mnist.a.seeds.0.versions": {"torch": 2},
    "versions": ["2.13"],
}


@pytest.mark.parametrize("place", DAMAGE)
@pytest.mark.parametrize("command", ["compare", "run"])
def test_a_damaged_results_file_is_one_line_that_names_it(tmp_path, monkeypatch, place, command):
    file, tiny = tmp_path / "tiny-small.json", experiment(tmp_path)
    monkeypatch.setattr(catalogue, "load", lambda name: tiny)
    results_file.write(file, tiny, "small", results({"a": (0.1, {"0": 0.5})}))
    found = json.loads(file.read_text())
    inside = found
    *folders, last = place.split(".")
    for name in folders:
        inside = inside[name]
    inside[last] = DAMAGE[place]
    file.write_text(json.dumps(found))
    shown = CliRunner().invoke(
        app, ["experiment", command, "tiny", "--results", str(tmp_path), "--runs", str(tmp_path)]
    )
    assert isinstance(shown.exception, SystemExit)
    assert f"{file} is not a results file" in shown.output.replace("\n", "")


def test_every_committed_file_can_be_read():
    folder = Path(__file__).parents[2] / "results"
    read = [
        results_file.read(folder / file_name(name, profile))
        for name in catalogue.TRAINED
        for profile in catalogue.load(name).profiles
    ]
    assert sum(map(bool, read)) >= 12
