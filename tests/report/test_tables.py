import math
import re

import pytest

from klms.compressors.schemes import SCHEMES
from klms.methods import dense
from klms.methods.table import METHODS
from klms.report.colours import COLOURS, HUES
from klms.report.document import as_json, make
from klms.report.page import render
from klms.report.paper import entries, results_for
from klms.report.table import places
from tests.report.folders import line, write_run


def table(*places):
    (section,) = make(places).sections
    return section


def row(made, method, settings=""):
    (found,) = [n for n, one in enumerate(made.task.rows) if (one.method, one.settings) == (method, settings)]
    return {column.name: column.cells[found] for column in made.table.columns}


def test_mean_and_deviation_by_hand(tmp_path):
    for seed, accuracy in enumerate((0.90, 0.93, 0.99)):
        first = line(1, 0.1, bits=1.0, bytes_up=1_000_000, bytes_down=2_000)
        lines = [first, line(2, accuracy, bits=3.0 - seed, bytes_up=500_000, bytes_down=4_000_000)]
        write_run(tmp_path / str(seed), seed=seed, rounds=2, lines=lines)
    cells = row(table(tmp_path), "fedpm")
    # mean 0.94; squares of the differences 16, 1 and 25 times 1e-4; 42e-4 / 2
    assert cells["accuracy"].value == pytest.approx(0.94)
    assert cells["accuracy"].deviation == pytest.approx(math.sqrt(21e-4))
    assert (cells["accuracy"].text, cells["accuracy"].spread) == ("0.9400", "0.0458")
    # bits of the runs: 2, 1.5 and 1
    assert cells["bits/parameter up"].value == pytest.approx(1.5)
    assert cells["bits/parameter up"].deviation == pytest.approx(0.5)
    assert cells["x smaller up"].value == pytest.approx(32 / 1.5)
    sent = [cells[f"MB {way}"].value for way in ("up", "down", "total")]
    assert sent == pytest.approx([1.5, 4.002, 5.502])
    # float32 both ways: 64 MB in every first round, and 64 times 500 kB over 3, 2 and 1 bits in the second rounds
    float32 = 3 * 64 + 32 / 3 + 32 / 2 + 32
    assert cells["x smaller total"].value == pytest.approx(float32 / (3 * 5.502))
    assert cells["coding"].value == pytest.approx(0.75 / 4)
    assert cells["coding"].text == "18.8%"
    assert cells["seconds"].text == "10"
    assert (cells["rounds"].text, cells["seeds"].text) == ("2", "3")


def test_one_seed_has_no_deviation(tmp_path):
    cells = row(table(write_run(tmp_path / "a")), "fedpm")
    assert cells["accuracy"].deviation is None
    assert cells["accuracy"].spread == ""


def test_settings_that_differ_make_rows_and_others_do_not(tmp_path):
    write_run(tmp_path / "a", "fedpm-klms", target=6.0)
    write_run(tmp_path / "b", "fedpm-klms", target=9.5)
    write_run(tmp_path / "c", "fedpm-klms", target=9.5, seed=1)
    write_run(tmp_path / "d", "qsgd", target=7.0, lr=0.5)
    write_run(tmp_path / "e", "qsgd", target=7.0, lr=0.5, seed=1, new_setting=3, device="cuda")
    made = table(tmp_path)
    assert [(one.method, one.settings) for one in made.task.rows] == [
        ("fedpm-klms", "target 6"),
        ("fedpm-klms", "target 9.5"),
        ("qsgd", ""),
    ]
    assert row(made, "fedpm-klms", "target 9.5")["seeds"].text == "2"
    assert row(made, "qsgd")["seeds"].text == "2"


def test_a_row_names_as_few_settings_as_tell_rows_apart(tmp_path):
    for index, (target, low, lr) in enumerate([(6.0, 0.7, 0.1), (9.5, 0.72, 0.1), (9.5, 0.72, 0.2)]):
        write_run(tmp_path / str(index), "fedpm-klms", target=target, low=low, lr=lr)
    assert [one.name for one in table(tmp_path).task.rows] == [
        "fedpm-klms (lr 0.1, target 6)",
        "fedpm-klms (lr 0.1, target 9.5)",
        "fedpm-klms (lr 0.2, target 9.5)",
    ]


def test_rows_of_an_experiment_have_its_names(tmp_path):
    """Whatever settings make them; the report need not be of the whole folder of runs."""
    place = tmp_path / "small" / "table1" / "mnist"
    write_run(place / "fedpm-klms-0", "fedpm-klms", memory=4)
    write_run(place / "fedpm-klms-1", "fedpm-klms", memory=4, seed=1)
    write_run(place / "fedpm-klms-literal-0", "fedpm-klms", memory=0, selection="sample")
    write_run(tmp_path / "mine", "qsgd", lr=0.5)
    made = table(tmp_path)
    assert [(one.name, one.settings) for one in made.task.rows] == [
        ("fedpm-klms", ""),
        ("fedpm-klms, literal", ""),
        ("qsgd", ""),
    ]
    assert [one.name for one in table(place / "fedpm-klms-literal-0").task.rows] == ["fedpm-klms, literal"]


def test_settings_tell_rows_of_the_same_name_apart(tmp_path):
    write_run(tmp_path / "table1" / "mnist" / "fedpm-klms-literal-0", "fedpm-klms", target=8.0)
    write_run(tmp_path / "table1" / "3-rounds" / "mnist" / "fedpm-klms-literal-0", "fedpm-klms", target=8.0, rounds=2)
    write_run(tmp_path / "table1" / "mnist" / "fedpm-klms-0", "fedpm-klms", target=4.0)
    write_run(tmp_path / "mine", "fedpm-klms", target=9.0)
    assert [one.name for one in table(tmp_path).task.rows] == [
        "fedpm-klms (target 4)",
        "fedpm-klms (target 9)",
        "fedpm-klms, literal (rounds 2)",
        "fedpm-klms, literal (rounds 3)",
    ]


@pytest.mark.parametrize("folder", ["table1/mnist/mine-0", "tabel1/mnist/fedpm-klms-literal-0", "fedpm-klms-literal-0"])
def test_a_run_elsewhere_has_the_name_of_its_method(tmp_path, folder):
    assert [one.name for one in table(write_run(tmp_path / folder, "fedpm-klms")).task.rows] == ["fedpm-klms"]


def test_another_split_is_another_table(tmp_path):
    write_run(tmp_path / "a", c_max=9)  # says nothing of an i.i.d. split
    write_run(tmp_path / "b", "qsgd")
    write_run(tmp_path / "c", split="noniid", c_max=2, per_round=2)
    sections = make([tmp_path]).sections
    assert [section.task.title for section in sections] == [
        "mnist, i.i.d.",
        "mnist, non-i.i.d., at most 2 classes per client",
    ]
    assert sections[1].task.subtitle == "lenet, 2 of 4 clients per round, 600 training examples"


def test_unfinished_runs_are_no_part_of_a_mean_of_finished_ones(tmp_path):
    write_run(tmp_path / "a", lines=[line(n, 0.9) for n in (1, 2, 3)])
    write_run(tmp_path / "b", seed=1, lines=[line(1, 0.1)])
    cells = row(table(tmp_path), "fedpm")
    assert cells["accuracy"].value == pytest.approx(0.9)
    assert cells["seeds"].text == "1 of 2"
    alone = row(table(tmp_path / "b"), "fedpm")
    assert (alone["accuracy"].text, alone["rounds"].text) == ("0.1000", "1 of 3")


def test_a_copy_is_no_further_seed(tmp_path):
    write_run(tmp_path / "a", lines=[line(1, 0.5)])
    write_run(tmp_path / "b")
    report = make([tmp_path])
    assert row(report.sections[0], "fedpm")["rounds"].text == "3"
    assert [(one.name, one.why) for one in report.left_out] == [("a", "it has the same settings and seed as b")]
    assert len(report.runs) == 1


def test_numbers_that_are_none_leave_their_cell_empty(tmp_path):
    lines = [line(1, 0.1, nll=None, ece=None, seconds={"train": 0.0})]
    made = table(write_run(tmp_path / "a", rounds=1, lines=lines))
    names = [column.name for column in made.table.columns]
    assert "accuracy" in names
    assert not {"nll", "ece", "coding", "seconds"} & set(names)


def test_rounds_that_were_skipped_do_not_lower_the_bitrate(tmp_path):
    skipped = line(2, 0.8, bits=0.0, bytes_up=0, passed_over=1)
    write_run(tmp_path / "a", lines=[line(1, 0.8, bits=0.5), skipped, line(3, 0.9, bits=0.3)])
    (section,) = make([tmp_path]).sections
    assert row(section, "fedpm")["bits/parameter up"].value == pytest.approx(0.4)
    assert section.runs[0].columns["bits"] == (0.5, None, 0.3)


def test_a_run_without_aggregated_rounds_has_no_ratio(tmp_path):
    lines = [line(1, bits=0.0, bytes_up=0, passed_over=1)]
    made = table(write_run(tmp_path / "a", rounds=1, lines=lines))
    assert not [column.name for column in made.table.columns if "smaller" in column.name]


def test_a_rate_that_no_number_can_hold_has_no_ratio(tmp_path):
    made = table(write_run(tmp_path / "a", rounds=1, lines=[line(1, 0.5, bits=1e-320)]))
    assert not [column.name for column in made.table.columns if "smaller" in column.name]


def test_every_run_of_the_report_is_listed(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1, lines=[line(1, 0.1)])
    write_run(tmp_path / "c", seed=1, lines=[line(1, 0.1), line(2, 0.2)])
    made = as_json(make([tmp_path]))
    listed = [(run["name"], run["rounds"]) for run in made["tasks"][0]["runs"]]
    assert listed == [("a", "3 of 3"), ("c", "2 of 3, not in the mean")]
    assert made["runs"] == 2
    assert [remark["name"] for remark in made["left_out"]] == ["b"]
    assert not made["all_finished"]


def test_methods_are_in_the_order_of_the_table_and_families_share_a_hue(tmp_path):
    for method in ("zeta", *reversed(METHODS), "alpha-klms"):
        write_run(tmp_path / method, method)
    rows = table(tmp_path).task.rows
    assert [one.method for one in rows] == [*METHODS, "alpha-klms", "zeta"]
    styles = {one.method: one.style for one in rows}
    for one in METHODS.values():
        same = {name for name in METHODS if styles[name].hue == styles[one.name].hue}
        assert same >= {name for name, entry in METHODS.items() if entry.family == one.family}
    for method, style in styles.items():
        klms = method == "trellis" or "klms" in method.split("-")
        assert (style.dashes == 0, style.hollow) == (klms, not klms), method
    assert len({(style.hue, style.dashes) for style in styles.values()}) >= len(METHODS)


def test_the_page_has_the_colours_of_the_list_and_no_others():
    page = render({})
    numbers = [str(hue) for hue in range(HUES)]
    assert re.findall(r" --h(\d+): light-dark", page) == numbers
    assert re.findall(r"\.h(\d+) { --base", page) == numbers
    assert set(re.findall(r"var\(--h(\d+)\)", page)) <= set(numbers)
    assert len(set(COLOURS)) == HUES


def test_families_differ_in_colour_and_those_beyond_the_last_colour_in_shade(tmp_path, monkeypatch):
    """The order of the table decides, so a colour stays whatever runs a report has."""
    for n in range(2 * HUES):
        entry = dense.entry(SCHEMES["float32"], f"new-{n}", family=f"new-{n}")
        monkeypatch.setitem(METHODS, entry.name, entry)
    for method in METHODS:
        write_run(tmp_path / method, method)
    styles = {one.method: one.style for one in table(tmp_path).task.rows}
    families = list(dict.fromkeys(entry.family for entry in METHODS.values()))
    found = {entry.family: (styles[name].hue, styles[name].shade) for name, entry in METHODS.items()}
    assert [found[family][0] for family in families] == [place % HUES for place in range(len(families))]
    assert len(families) > 2 * HUES
    assert len(set(found.values())) == len(families)
    assert table(tmp_path / "new-3").task.rows[0].style == styles["new-3"]


def test_an_unknown_method_has_a_hue_of_its_own(tmp_path):
    for method in ("fedavg", "fedpm", "mine", "theirs"):
        write_run(tmp_path / method, method)
    assert len({one.style.hue for one in table(tmp_path).task.rows}) == 4


def test_rows_of_a_klms_method_have_shades_before_they_have_dashes(tmp_path):
    for target in range(1, 6):
        write_run(tmp_path / str(target), "fedpm-klms", target=target)
    styles = [one.style for one in table(tmp_path).task.rows]
    assert [(style.shade, style.dashes) for style in styles] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]


def test_three_digits():
    assert [places(value) for value in (0.0123, 0.99999, 1.0, 31.99, 4000.0, 0.0)] == [4, 2, 2, 1, 0, 3]


def test_one_of_the_papers_points_stands_beside_each_row(tmp_path):
    """The paper has FedPM-KLMS at 0.041 and at 0.014 bits: that with the nearest bitrate is shown."""
    write_run(tmp_path / "a", "fedpm-klms", lr=0.1, lines=[line(n, 0.9, bits=0.03) for n in (1, 2, 3)])
    write_run(tmp_path / "b", "fedpm-klms", lr=0.2, lines=[line(n, 0.9, bits=0.02) for n in (1, 2, 3)])
    write_run(tmp_path / "c", "fedavg")
    write_run(tmp_path / "d", "qsgd", lines=[line(n, bits=0.0, bytes_up=0, passed_over=1) for n in (1, 2, 3)])
    made = table(tmp_path)
    (name,) = [column.name for column in made.table.columns if column.name.startswith("paper")]
    assert "other model and rounds" in name
    assert row(made, "fedpm-klms", "lr 0.1")[name].text == "0.9945 at 0.041"
    assert row(made, "fedpm-klms", "lr 0.2")[name].text == "0.9943 at 0.014"
    assert row(made, "qsgd")[name].value is None  # it sent nothing
    assert row(made, "fedavg")[name].value is None
    assert made.table.paper == "Table 1: CONV4, 200 rounds"


@pytest.mark.parametrize(
    ("config", "source", "method", "points"),
    [
        ({"data": "cifar10", "split": "iid"}, "Table 1", "qsgd", [(0.753, 0.072)]),
        ({"data": "cifar100", "split": "iid"}, "Table 1", "fedpm-klms", [(0.469, 0.072), (0.455, 0.018)]),
        ({"data": "emnist", "split": "iid"}, "Table 1", "marina", [(0.867, 2.04)]),
        ({"data": "cifar10", "split": "noniid", "c_max": 4}, "Table 2", "signsgd-klms", [(0.53, 0.074), (0.52, 0.018)]),
        ({"data": "cifar100", "split": "noniid", "c_max": 40}, "Table 2", "eden", [(0.425, 0.81)]),
        ({"data": "cifar10", "split": "noniid", "c_max": 2}, "appendix, c_max", "drive", [(0.221, 0.885)]),
        ({"data": "cifar100", "split": "noniid", "c_max": 20}, "appendix, c_max", "fedpm", [(0.181, 0.999)]),
        ({"data": "stackoverflow", "split": "natural"}, "appendix, Stack Overflow", "fedpm-klms", [(0.24, 0.015)]),
        (
            {"data": "mnist", "split": "noniid", "c_max": 4, "clients": 10, "per_round": 10},
            "appendix, Bayesian",
            "sgld-klms",
            [(0.922, 0.08)],
        ),
        (
            {"data": "mnist", "split": "iid", "clients": 50, "per_round": 10},
            "appendix, Bayesian",
            "qlsd",
            [(0.868, 0.5)],
        ),
        (
            {"data": "mnist", "split": "noniid", "c_max": 4, "clients": 50, "per_round": 10},
            "appendix, Bayesian",
            "sgld-klms",
            [(0.92, 0.06)],
        ),
    ],
)
def test_the_papers_tables(config, source, method, points):
    found = results_for(config)
    assert found.source.startswith(source)
    assert [tuple(point) for point in found.methods[method]] == points


def test_what_the_paper_did_not_run_has_no_numbers():
    assert not results_for({"data": "fashion-mnist", "split": "iid"}).methods
    assert not results_for({"data": "cifar10", "split": "noniid", "c_max": 3}).methods
    assert not results_for({"data": "cifar10", "split": "iid", "clients": 50, "per_round": 5}).methods


def test_the_papers_numbers_are_of_known_methods():
    for entry, _ in entries():
        assert set(entry.methods) <= set(METHODS)
        for points in entry.methods.values():
            assert all(0 < accuracy < 1 and 0 < bits < 3 for accuracy, bits in points)
            assert [bits for _, bits in points] == sorted((bits for _, bits in points), reverse=True)
    assert sum(len(points) for entry, _ in entries() for points in entry.methods.values()) == 134
