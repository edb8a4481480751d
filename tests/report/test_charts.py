"""The charts of the page, in a browser: what they show, and that they follow each other."""

import pytest

CURVES = ["accuracy", "nll", "bits", "megabytes", "kl"]


def plot(figure):
    return f"#mnist-iid-lenet-{figure} .plot"


def over(figure):
    return f"{plot(figure)} .u-over"


@pytest.fixture
def charts(browser, address):
    browser.open(address, width=1280)
    browser.run("document.querySelector('#mnist-iid-lenet-accuracy').scrollIntoView()")
    browser.settle()
    yield browser
    assert browser.complaints() == []


def choose(browser, label, value):
    """Choose in a menu of the controls."""
    select = f"[...document.querySelectorAll('.controls label')].find(l => l.innerText.startsWith('{label}')).control"
    browser.run(f"{select}.value = {value!r}, {select}.dispatchEvent(new Event('change'))")
    browser.settle()


def curve(browser, figure, label):
    """The points of a line: x, y."""
    chart = f"document.querySelector('{plot(figure)}').chart"
    xs, ys = browser.run(f"[{chart}.data[0], {chart}.data[{chart}.series.findIndex(s => s.label === '{label}')]]")
    return [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]


def labels(browser, figure):
    return browser.run(f"document.querySelector('{plot(figure)}').chart.series.slice(1).map(s => s.label)")


def share(browser, figure, x, y=None):
    """Where a number is, as shares of the width and height of a chart."""
    chart = f"document.querySelector('{plot(figure)}').chart"
    across = browser.run(f"{chart}.valToPos({x}, 'x') / {chart}.over.clientWidth")
    return across, 0.5 if y is None else browser.run(f"{chart}.valToPos({y}, 'y') / {chart}.over.clientHeight")


def point_at(browser, figure, x, y=None):
    place = share(browser, figure, x, y)
    for off in (0.01, 0):
        browser.point(over(figure), place[0] + off, place[1])
    browser.settle()


def range_of(browser, figure):
    chart = f"document.querySelector('{plot(figure)}').chart"
    return browser.run(f"[{chart}.scales.x.min, {chart}.scales.x.max]")


def readout(browser, figure):
    box = f"document.querySelector('{plot(figure)} .readout')"
    return browser.run(f"{box}.hidden ? [] : [...{box}.children].map(line => line.innerText.replace(/\\s+/g, ' '))")


@pytest.mark.parametrize(
    ("axis", "xs"),
    [
        ("round", [1, 2, 3]),
        ("seconds", [5, 10, 15]),
        ("up", [50e-6, 100e-6, 150e-6]),
        ("down", [100e-6, 200e-6, 300e-6]),
        ("total", [150e-6, 300e-6, 450e-6]),
    ],
)
def test_a_line_is_the_mean_over_seeds_against_any_axis(charts, axis, xs):
    choose(charts, "x axis", axis)
    points = curve(charts, "accuracy", "fedpm-klms")
    assert [x for x, _ in points] == pytest.approx(xs)
    assert [y for _, y in points] == pytest.approx([0.8005, 0.8105, 0.8205])


def test_lines_are_means_single_runs_or_means_by_a_setting(charts):
    assert labels(charts, "accuracy")[:3] == ["fedpm", "fedpm-klms", "qsgd"]
    choose(charts, "Lines", "runs")
    runs = labels(charts, "accuracy")
    assert {"fedpm-0", "fedpm-1", "klms-0", "klms-1"} < set(runs)
    assert [y for _, y in curve(charts, "accuracy", "klms-1")] == pytest.approx([0.801, 0.811, 0.821])
    choose(charts, "Lines", "seed")
    assert labels(charts, "accuracy") == ["seed 0", "seed 1"]
    assert curve(charts, "accuracy", "seed 1")[0] == (1, pytest.approx((0.81 + 0.801) / 2))


def test_the_legend_hides_a_line_in_all_charts(charts):
    button = "[...document.querySelectorAll('.tools .legend button')].find(b => b.textContent === 'fedpm-klms')"
    charts.run(f"{button}.focus(), {button}.click()")
    assert "fedpm-klms" not in labels(charts, "accuracy") + labels(charts, "bits") + labels(charts, "accuracy-cost")
    assert charts.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert charts.run(f"document.activeElement === {button}")
    charts.press("Enter")
    assert "fedpm-klms" in labels(charts, "accuracy")


def test_the_pointer_of_one_chart_is_that_of_all(charts):
    point_at(charts, "accuracy", 2)
    assert readout(charts, "accuracy")[0] == "round 2"
    assert "fedpm-klms 0.8105 ± 0.00071" in readout(charts, "accuracy")
    assert "fedpm-klms 0.02 ± 0" in readout(charts, "bits")
    assert "fedpm-klms: index bits 0.0075 ± 0" in readout(charts, "kl")
    assert readout(charts, "block-sizes") == []  # it has another axis
    charts.point("h1", 0.5, 0.5)
    charts.settle()
    assert [readout(charts, figure) for figure in CURVES] == [[]] * len(CURVES)


def test_a_line_under_the_pointer_stands_out_in_all_charts(charts):
    choose(charts, "Lines", "runs")
    point_at(charts, "accuracy", 2, 0.88)
    for figure in ("accuracy", "bits"):
        lit = charts.run(f"document.querySelector('{plot(figure)} .readout .on span').textContent")
        assert lit == "deeper/still/qsgd"


def test_a_zoom_of_one_chart_is_that_of_all_until_it_is_reset(charts):
    whole = range_of(charts, "accuracy")
    charts.drag(over("accuracy"), share(charts, "accuracy", 2)[0], share(charts, "accuracy", 4)[0])
    low, high = range_of(charts, "accuracy")
    assert (low, high) == (pytest.approx(2, abs=0.05), pytest.approx(4, abs=0.05))
    assert [range_of(charts, figure) for figure in CURVES] == [[low, high]] * len(CURVES)
    reset = "[...document.querySelectorAll('button')].find(b => b.textContent === 'Reset zoom')"
    charts.run(f"{reset}.click()")
    charts.settle()
    assert [range_of(charts, figure) for figure in CURVES] == [whole] * len(CURVES)
    assert charts.run(f"{reset}.hidden")
    charts.drag(over("bits"), 0.1, 0.5)
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            charts.point(over("nll"), 0.5, 0.5, kind, button="left", clickCount=count)
    charts.settle()
    assert range_of(charts, "accuracy") == whole


def test_keys_read_values_and_zoom(charts):
    charts.run(f"document.querySelector('{plot('accuracy')}').focus()")
    for expected in ("round 1", "round 2", "round 3"):
        charts.press("ArrowRight")
        charts.settle()
        assert readout(charts, "accuracy")[0] == readout(charts, "bits")[0] == expected
    whole = range_of(charts, "accuracy")
    charts.press("+")
    charts.settle()
    assert range_of(charts, "bits") != whole
    charts.press("Escape")
    charts.settle()
    assert range_of(charts, "bits") == whole


@pytest.mark.parametrize("width", [1280, 390])
def test_a_point_tells_its_numbers(browser, address, width):
    browser.open(address, width=width)
    browser.run(f"document.querySelector('{plot('accuracy-cost')}').scrollIntoView({{block: 'center'}})")
    browser.settle()
    point_at(browser, "accuracy-cost", 0.1, 0.87)
    assert readout(browser, "accuracy-cost") == ["bits/parameter up 0.1", "qsgd 0.87"]
    assert browser.run("document.documentElement.scrollWidth") == width


def test_the_cost_of_a_point_can_be_the_total(charts):
    select = "document.querySelector('#mnist-iid-lenet-accuracy-cost select')"
    charts.run(f"{select}.value = 'MB total', {select}.dispatchEvent(new Event('change'))")
    assert curve(charts, "accuracy-cost", "fedpm-klms") == [(pytest.approx(450e-6), pytest.approx(0.8205))]
    assert not [label for label in labels(charts, "accuracy-cost") if label.startswith("paper")]
