import csv

import pytest

from klms.report import page
from klms.report.document import make
from tests.report.folders import gallery, line, write_run

ALL = ["accuracy-bits", "accuracy-rounds", "accuracy-megabytes", "accuracy-megabytes-total", "bits-rounds", "kl-rounds"]
ALL += ["kl-layers", "block-sizes", "phases", "split"]


def figures(place):
    (section,) = make([place]).sections
    return {figure.id: figure for figure in section.figures}


def test_a_figure_without_data_is_left_out(tmp_path):
    assert list(figures(gallery(tmp_path / "all"))) == ALL
    assert list(figures(write_run(tmp_path / "bare"))) == [*ALL[:5], "phases"]
    bare = write_run(tmp_path / "barer", rounds=1, lines=[line(1, seconds={"total": 1.0})])
    assert list(figures(bare)) == ["bits-rounds"]


def test_curves_are_means_over_seeds(tmp_path):
    made = figures(gallery(tmp_path))
    (klms,) = [series for series in made["accuracy-megabytes"].series if series.name == "fedpm-klms"]
    assert [point.x for point in klms.points] == pytest.approx([50e-6, 100e-6, 150e-6])
    assert [point.y for point in klms.points] == pytest.approx([0.8005, 0.8105, 0.8205])
    assert klms.points[0].deviation == pytest.approx(0.001 / 2**0.5)
    names = [series.name for series in made["kl-rounds"].series]
    assert names == ["fedpm-klms: KL", "fedpm-klms: index bits"]


def test_megabytes_in_total_are_those_up_and_down(tmp_path):
    figure = figures(gallery(tmp_path))["accuracy-megabytes-total"]
    (klms,) = [series for series in figure.series if series.name == "fedpm-klms"]
    assert [point.x for point in klms.points] == pytest.approx([150e-6, 300e-6, 450e-6])
    assert figure.x.label == "MB up and down"


def test_runs_that_did_not_count_the_downlink_have_no_total(tmp_path):
    write_run(tmp_path / "old", "fedavg", lines=[line(n, 0.9, bytes_down=None) for n in (1, 2, 3)])
    assert "accuracy-megabytes-total" not in figures(tmp_path)
    write_run(tmp_path / "resumed", lines=[line(1, 0.9, bytes_down=None), line(2, 0.9), line(3, 0.9)])
    write_run(tmp_path / "new", "qsgd")
    made = figures(tmp_path)
    assert [one.name for one in made["accuracy-megabytes-total"].series] == ["qsgd"]
    assert {one.name for one in made["accuracy-megabytes"].series} == {"fedavg", "fedpm", "qsgd"}


def test_rounds_that_not_all_seeds_have_are_not_in_a_curve(tmp_path):
    write_run(tmp_path / "a", rounds=9, lines=[line(1, 0.1), line(2), line(3, 0.3)])
    write_run(tmp_path / "b", rounds=9, seed=1, lines=[line(1, 0.3), line(2, 0.4)])
    (series,) = figures(tmp_path)["accuracy-rounds"].series
    assert [(point.x, point.y) for point in series.points] == [(1, pytest.approx(0.2))]


def test_accuracy_against_bits_has_the_papers_points(tmp_path):
    series = figures(gallery(tmp_path))["accuracy-bits"].series
    paper = {one.name: [(point.y, point.x) for point in one.points] for one in series if one.paper}
    assert paper["paper: fedpm-klms"] == [(0.9945, 0.041), (0.9943, 0.014)]


def test_long_runs_are_averaged_for_the_eye(tmp_path):
    lines = [line(n, kl=float(n)) for n in range(1, 251)]
    made = figures(write_run(tmp_path / "a", rounds=250, lines=lines, described=True, bounds=range(5001)))
    (panel,) = made["kl-layers"].panels
    assert len(panel.columns) == 100
    assert (panel.rows[0], panel.columns[0], panel.values[0][0]) == ("conv.weight", "1 to 2", 0.75)
    (steps,) = made["block-sizes"].panels
    assert len(steps.heights) == 2000
    assert set(steps.heights) == {1.0}
    assert steps.starts[-1] == 5000
    assert steps.marks == ()  # the layers have another size


def test_panels_say_layers_and_clients(tmp_path):
    made = figures(gallery(tmp_path))
    (heat,) = made["kl-layers"].panels
    assert heat.values[1] == pytest.approx((0.02, 0.01, 0.02 / 3))
    (blocks,) = made["block-sizes"].panels
    assert (blocks.starts, blocks.heights) == ((0, 10, 45, 100), (10, 35, 55))
    assert blocks.marks == ((0, "conv.weight"), (60, "fc.weight"))
    assert [panel.name for panel in made["split"].panels] == ["seed 0", "seed 1"]
    assert made["split"].panels[0].values == ((5, 3), (0, 9), (4, 4), (8, 1))
    assert made["phases"].panels[0].values[0] == (3.0, 0.5, 0.25, 0.25, 1.0)


def test_the_page_and_one_csv_file_per_figure_are_written(tmp_path):
    page.write(make([gallery(tmp_path / "runs")]), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "figures"}
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {f"mnist-iid-lenet-{n}.csv" for n in ALL}


def test_any_layer_name_can_be_written(tmp_path):
    folder = write_run(tmp_path / "a", lines=[line(1, kl=0.1)], rounds=1)
    (folder / "run.json").write_text('{"layers": [{"name": "\\ud800", "size": 1}, {"name": "\\u0001", "size": 1}]}')
    page.write(make([folder]), tmp_path / "out")


def test_csv_holds_what_is_drawn(tmp_path):
    made = figures(gallery(tmp_path / "runs"))

    def rows(name):
        page.write_csv(made[name], tmp_path / "figure.csv")
        with (tmp_path / "figure.csv").open(newline="") as file:
            return list(csv.reader(file))

    assert rows("accuracy-rounds")[:2] == [
        ["series", "round", "accuracy", "deviation"],
        ["fedpm", "1.0", "0.81", "0.0"],
    ]
    assert rows("kl-layers")[1] == ["fedpm-klms", "conv.weight", "1", "0.005"]
    assert rows("block-sizes")[1:] == [
        ["fedpm-klms", "0", "10", "10.0"],
        ["fedpm-klms", "10", "45", "35.0"],
        ["fedpm-klms", "45", "100", "55.0"],
    ]
    assert rows("split")[:3] == [
        ["panel", "client", "class 0", "class 1"],
        ["seed 0", "0", "5.0", "3.0"],
        ["seed 0", "1", "0.0", "9.0"],
    ]
    assert rows("phases")[0] == ["panel", "method", "train", "encode", "decode", "aggregate", "evaluate"]


def test_a_spreadsheet_runs_no_formula_of_a_name(tmp_path):
    made = figures(write_run(tmp_path / "a", method="=HYPERLINK(0)"))
    page.write_csv(made["bits-rounds"], tmp_path / "figure.csv")
    assert (tmp_path / "figure.csv").read_text().splitlines()[1].startswith("'=HYPERLINK(0)")
