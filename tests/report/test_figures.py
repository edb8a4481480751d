import csv
import json
from types import SimpleNamespace

import pytest

from klms.report import page
from klms.report.document import as_json, make
from tests.report.folders import gallery, line, write_description, write_run

ALL = ["accuracy-cost", "accuracy", "nll", "bits", "megabytes", "kl", "kl-layers", "block-sizes", "phases"]
ALL += ["client-bytes", "split"]


def figures(place):
    """What the page draws, by figure."""
    (task,) = as_json(make([place]))["tasks"]
    read = json.loads(json.dumps(task["figures"]), object_hook=lambda fields: SimpleNamespace(**fields))
    return {figure.id: figure for figure in read}


def columns(place, name):
    """What the page has of a run."""
    (found,) = [run.columns for run in make([place]).runs if run.name == name]
    return found


def test_a_figure_without_data_is_left_out(tmp_path):
    assert list(figures(gallery(tmp_path / "all"))) == ALL
    assert list(figures(write_run(tmp_path / "bare"))) == [*ALL[:5], "phases", "client-bytes"]
    bare = write_run(tmp_path / "barer", rounds=1, lines=[line(1, seconds={"total": 1.0}, message_bytes=None)])
    assert list(figures(bare)) == ["bits", "megabytes"]


def test_the_training_loss_has_a_curve(tmp_path):
    lines = [line(1, train_loss=2.5), line(2, 0.4), line(3, train_loss=1.5)]  # in one round no client reported it
    assert "train-loss" in figures(write_run(tmp_path / "run", lines=lines))
    assert columns(tmp_path, "run")["train_loss"] == (2.5, None, 1.5)


def test_every_run_has_what_it_measured_and_what_it_can_be_drawn_against(tmp_path):
    made = figures(gallery(tmp_path))
    klms = columns(tmp_path, "klms-1")
    assert klms["accuracy"] == pytest.approx((0.801, 0.811, 0.821))
    assert klms["round"] == (1, 2, 3)
    assert klms["seconds"] == (5, 10, 15)
    assert klms["up"] == pytest.approx((50e-6, 100e-6, 150e-6))
    assert klms["down"] == pytest.approx((100e-6, 200e-6, 300e-6))
    assert klms["total"] == pytest.approx((150e-6, 300e-6, 450e-6))
    assert klms["round_down"] == pytest.approx((100e-6,) * 3)
    assert "kl_bits_per_parameter" not in columns(tmp_path, "fedpm-1")
    assert [measure.label for measure in made["kl"].measures] == ["KL", "index bits"]


def axes(place):
    return {axis["column"]: axis["log"] for axis in as_json(make([place]))["tasks"][0]["axes"]}


def test_the_axes_are_rounds_time_and_bytes_each_way(tmp_path):
    assert axes(gallery(tmp_path)) == {"round": False, "seconds": False, "up": True, "down": True, "total": True}


def test_rounds_and_seconds_are_linear_however_long_runs_are(tmp_path):
    write_run(tmp_path / "short")
    write_run(tmp_path / "long", "qsgd", rounds=130)
    found = axes(tmp_path)
    assert not found["round"]
    assert not found["seconds"]


def test_numbers_that_are_far_apart_have_a_logarithmic_axis_but_accuracies_do_not(tmp_path):
    write_run(tmp_path / "a", lines=[line(1, 0.01, bits=0.01), line(2, 0.5), line(3, 0.9)])
    made = figures(tmp_path)
    assert made["bits"].y.log
    assert not made["accuracy"].y.log


def test_accuracy_against_cost_is_a_mean_over_seeds_beside_the_papers_point(tmp_path):
    figure = figures(gallery(tmp_path))["accuracy-cost"]
    assert [axis.label for axis in figure.x] == ["bits/parameter up", "MB up", "MB total"]
    (klms,) = [one for one in figure.points if one.row == "fedpm-klms" and not one.paper]
    assert klms.y == pytest.approx(0.8205)
    assert klms.deviation == pytest.approx(0.001 / 2**0.5)
    assert klms.x == pytest.approx((0.02, 150e-6, 450e-6))
    (paper,) = [one for one in figure.points if one.row == "fedpm-klms" and one.paper]
    assert (paper.y, paper.x) == (0.9943, [0.014, None, None])


def test_bytes_of_the_clients_are_sums_over_rounds_and_means_over_seeds(tmp_path):
    write_run(tmp_path / "a", lines=[line(1, bytes_up=4_000_000), line(2, bytes_up=8_000_000)], rounds=2)
    other = line(1, bytes_up=0) | {"clients": [1, 7], "message_bytes": [1_000_000, 3_000_000]}
    write_run(tmp_path / "b", seed=1, lines=[other, line(2, bytes_up=0)], rounds=2)
    (panel,) = figures(tmp_path)["client-bytes"].panels
    assert panel.rows == ["0", "1", "7"]
    assert panel.values == [[1.5], [5.0], [1.5]]


@pytest.mark.parametrize("sizes", [None, [1], [1, 2, 3]])
def test_bytes_of_the_clients_need_the_size_of_every_message(tmp_path, sizes):
    write_run(tmp_path / "a", lines=[line(1), line(2, message_bytes=sizes), line(3)])
    assert "client-bytes" not in figures(tmp_path)


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
    assert steps.marks == []  # the layers have another size


def test_panels_say_layers_and_clients(tmp_path):
    made = figures(gallery(tmp_path))
    (heat,) = made["kl-layers"].panels
    assert heat.values[1] == pytest.approx((0.02, 0.01, 0.02 / 3))
    (blocks,) = made["block-sizes"].panels
    assert (blocks.starts, blocks.heights) == ([0, 10, 45, 100], [10, 35, 55])
    assert blocks.marks == [[0, "conv.weight"], [60, "fc.weight"]]
    assert [panel.name for panel in made["split"].panels] == ["seed 0", "seed 1"]
    assert made["split"].panels[0].values == [[5, 3], [0, 9], [4, 4], [8, 1]]
    assert made["phases"].panels[0].values[0] == [3.0, 0.5, 0.25, 0.25, 1.0]


def test_the_page_and_one_csv_file_per_figure_are_written(tmp_path):
    page.write(make([gallery(tmp_path / "runs")]), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "figures"}
    assert {path.name for path in (tmp_path / "out" / "figures").iterdir()} == {f"mnist-iid-lenet-{n}.csv" for n in ALL}


def test_any_layer_name_can_be_written(tmp_path):
    folder = write_run(tmp_path / "a", lines=[line(1, kl=0.1)], rounds=1)
    write_description(folder, {"layers": [{"name": "\ud800", "size": 1}, {"name": "\u0001", "size": 1}]})
    page.write(make([folder]), tmp_path / "out")


def csv_figures(place):
    (section,) = make([place]).sections
    return {figure.id: figure for figure in section.figures}


def test_csv_holds_what_is_drawn(tmp_path):
    made = csv_figures(gallery(tmp_path / "runs"))

    def rows(name):
        page.write_csv(made[name], tmp_path / "figure.csv")
        with (tmp_path / "figure.csv").open(newline="") as file:
            return list(csv.reader(file))

    assert rows("accuracy")[:2] == [
        ["run", "series", "seed", "round", "seconds since the start", "MB up", "MB down", "MB total", "accuracy"],
        ["fedpm-0", "fedpm", "0", "1.0", "5.0", "0.001", "0.004", "0.005", "0.81"],
    ]
    assert len(rows("accuracy")) == 1 + 5 * 3
    assert rows("accuracy-cost")[0] == ["series", "bits/parameter up", "MB up", "MB total", "accuracy", "deviation"]
    assert rows("kl-layers")[1] == ["fedpm-klms", "conv.weight", "1", "0.005"]
    assert rows("block-sizes")[1:] == [
        ["fedpm-klms", "0", "10", "10.0"],
        ["fedpm-klms", "10", "45", "35.0"],
        ["fedpm-klms", "45", "100", "55.0"],
    ]
    assert rows("split")[:3] == [
        ["panel", "client", "class 0", "class 1"],
        ["seed 0", "0", "5", "3"],
        ["seed 0", "1", "0", "9"],
    ]
    assert rows("phases")[0] == ["panel", "method", "train", "encode", "decode", "aggregate", "evaluate"]


def test_a_spreadsheet_runs_no_formula_of_a_name(tmp_path):
    made = csv_figures(write_run(tmp_path / "a", method="=HYPERLINK(0)"))
    page.write_csv(made["accuracy-cost"], tmp_path / "figure.csv")
    assert (tmp_path / "figure.csv").read_text().splitlines()[1].startswith("'=HYPERLINK(0)")
