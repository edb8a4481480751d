import shutil
from pathlib import Path

import pytest

from klms.errors import InvalidArgument
from klms.experiments import results, results_file, tables
from klms.experiments.catalogue import TRAINED, comparable, load

ROOT = Path(__file__).parents[2]


def test_the_documents_are_made_of_the_committed_results():
    assert (ROOT / "docs" / "results.md").read_text() == results.document(ROOT / "results")
    assert (ROOT / "docs" / "zoo.md").read_text() == results.zoo(ROOT / "results")
    readme = (ROOT / "README.md").read_text()
    assert readme == results.readme(ROOT / "results", readme)


def committed():
    """Every results file of an experiment that trains, as its name and profile."""
    pairs = [(name, profile) for name in TRAINED for profile in load(name).profiles]
    return [pair for pair in pairs if (ROOT / "results" / results.file_name(*pair)).exists()]


@pytest.mark.parametrize(("name", "profile"), committed())
def test_committed_results_have_the_settings_of_the_catalogue(name, profile):
    """With today's values of all settings; of the profile `small` all rows and seeds, of others those that were run."""
    experiment = load(name)
    cells = {(cell.data, cell.row, cell.seed): cell for cell in experiment.cells(profile)}
    found = results_file.read(ROOT / "results" / results.file_name(name, profile))
    there = {(data, row, int(seed)) for data, row, entry in results_file.entries(found) for seed in entry["seeds"]}
    assert there <= cells.keys()
    if profile == "small":
        assert there == cells.keys()
    for data, row, entry in results_file.entries(found):
        today = {"config": comparable(cells[data, row, 0].config, "seed")}
        assert results_file.differences(entry, today) == []
        assert entry["config"].keys() >= {"method", "rounds", "lr", "target", "bits"}


def test_every_experiment_is_committed():
    assert {name for name, profile in committed() if profile == "small"} == set(TRAINED)


def test_the_results_of_another_profile_have_a_section_of_their_own(tmp_path):
    for file in (ROOT / "results").glob("*.json"):
        if not file.stem.endswith(("-cpu", "-paper")):
            shutil.copy(file, tmp_path)
    without = results.document(tmp_path)
    assert "on a CPU" not in without
    assert "<<" not in without
    numbers = {"accuracy": 0.5, "bits_per_parameter": 0.02, "uplink_bytes": 2_000_000, "downlink_bytes": 3_500_000}
    seeds = {"0": {**numbers, "times_smaller_total": 123.4}}
    config = {"model": "conv4", "width": 0.25, "rounds": 20}
    row = {"config": config, "examples": {"train": 34_011, "test": 6_723}, "seeds": seeds}
    results_file.write_json(tmp_path / "table1-cpu.json", {"versions": {}, "data": {"emnist": {"fedpm-klms": row}}})
    text = results.document(tmp_path)
    before, section = text.split("## The paper's tables on a CPU\n")
    section, after = section.split("\n## Few classes")
    assert before + "## Few classes" + after == without
    assert "`klms experiment run table1 --profile cpu`" in section
    assert "emnist, conv4 of width 0.25, 20 rounds, 34,011 training and 6,723 test images:" in section
    assert "| fedpm-klms | 1 | 0.5000 | 0.0200 | 2.000 | 3.500 | 5.500 | 123 |" in section
    assert "table2" not in section


def test_means_and_deviations():
    row = {"seeds": {"0": {"accuracy": 0.5}, "1": {"accuracy": 0.7}}}
    assert tables.mean_and_deviation(row, "accuracy") == pytest.approx((0.6, 0.02**0.5))
    assert tables.mean_and_deviation({"seeds": {"0": {"accuracy": 0.5}}}, "accuracy") == (0.5, 0.0)


def test_a_readme_without_marks_is_an_error():
    with pytest.raises(InvalidArgument, match="marks"):
        results.readme(ROOT / "results", "# klms")
