import json
from pathlib import Path

import pytest

from klms.errors import InvalidArgument
from klms.experiments import results, tables
from klms.experiments.catalogue import load, names
from klms.experiments.toy import TOYS

ROOT = Path(__file__).parents[2]


def test_the_documents_are_made_of_the_committed_results():
    assert (ROOT / "docs" / "results.md").read_text() == results.document(ROOT / "results")
    readme = (ROOT / "README.md").read_text()
    assert readme == results.readme(ROOT / "results", readme)


@pytest.mark.parametrize("name", [name for name in names() if name not in TOYS])
def test_committed_results_have_the_settings_of_the_catalogue(name):
    """All rows and seeds, with today's values of all settings that existed when they were made."""
    file = ROOT / "results" / results.file_name(name)
    found = json.loads(file.read_text())["data"]
    cells = load(name).cells("small")
    there = {
        (row, data, int(seed)) for data, rows in found.items() for row, entry in rows.items() for seed in entry["seeds"]
    }
    assert there == {(cell.row, cell.data, cell.seed) for cell in cells}
    for cell in cells:
        committed = found[cell.data][cell.row]["config"]
        today = cell.config.model_dump(mode="json")
        assert committed == {name: today.get(name) for name in committed}
        assert committed.keys() >= {"method", "rounds", "lr", "target", "bits"}


def test_means_and_deviations():
    row = {"seeds": {"0": {"accuracy": 0.5}, "1": {"accuracy": 0.7}}}
    assert tables.mean_and_deviation(row, "accuracy") == pytest.approx((0.6, 0.02**0.5))
    assert tables.mean_and_deviation({"seeds": {"0": {"accuracy": 0.5}}}, "accuracy") == (0.5, 0.0)


def test_a_readme_without_marks_is_an_error():
    with pytest.raises(InvalidArgument, match="marks"):
        results.readme(ROOT / "results", "# klms")
