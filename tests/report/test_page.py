import base64
import json
import re
import time
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.report import page
from klms.report.document import as_json, make
from tests.report.chromium import Page
from tests.report.folders import gallery, line, write_run

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&amp;\u2028'\"$x_{"


def embedded(html):
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', html, flags=re.DOTALL)
    return json.loads(data)


def test_a_hostile_name_stays_a_name(tmp_path):
    lines = [line(1, 0.5), line(2, 0.6)]
    write_run(tmp_path / "runs" / "<b>x", method=HOSTILE, rounds=2, lines=lines, data=HOSTILE, model=HOSTILE)
    html = page.render(as_json(make([tmp_path / "runs"])))
    assert html.count("<script") == 2
    assert "onerror=window" not in html.replace("\\u003cimg src=x onerror=window", "")
    assert "<img" not in html
    (task,) = embedded(html)["tasks"]
    assert task["table"]["rows"][0]["method"] == HOSTILE.replace("\u2028", "\N{REPLACEMENT CHARACTER}")
    assert re.fullmatch(r"[a-z0-9-]+", task["slug"])


def test_the_policy_names_the_only_script(tmp_path):
    html = page.render(as_json(make([write_run(tmp_path / "a")])))
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r"(?:src|href)=\"(?!data:|#|\{)[^\"]*\"", html.split("<script")[0])
    live = page.render(as_json(make([tmp_path / "a"])), live=True)
    assert "connect-src 'self'" in live
    assert embedded(live)["poll"] > 0


def test_the_command_writes_and_says_what_it_left_out(tmp_path):
    gallery(tmp_path / "runs")
    write_run(tmp_path / "runs" / "again", "qsgd", lines=[line(1, 0.5)])
    with (write_run(tmp_path / "runs" / "hurt", "fedavg") / "metrics.jsonl").open("a") as file:
        file.write("damage\n")
    (write_run(tmp_path / "runs" / "broken") / "config.toml").write_text("=")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "6 runs" in result.output
    assert "left out: broken: config.toml is not TOML" in result.output
    data = embedded((tmp_path / "out" / "index.html").read_text())
    assert "left out: again: it has the same settings and seed as deeper/still/qsgd" in result.output
    assert "incomplete: hurt: line 4" in result.output
    assert data["csv"]
    assert data["runs"] == sum(len(task["runs"]) for task in data["tasks"]) == 6
    assert [one["name"] for one in data["left_out"]] == ["broken", "again"]
    assert [one["name"] for one in data["incomplete"]] == ["hurt"]


def test_nothing_to_report_is_an_error(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "no run to report" in result.output
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    opened = Page(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    gallery(folder / "runs")
    write_run(folder / "runs" / "hostile", method=HOSTILE, rounds=5, described=True, bounds=[0, 100])
    (folder / "index.html").write_text(page.render(as_json(make([folder / "runs"]), csv=True)))
    return (folder / "index.html").as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(browser, address, tmp_path, width, dark):
    browser.open(address, width=width, dark=dark)
    assert browser.requests() == [address]
    assert browser.complaints() == []
    assert browser.run("window.hacked") is None
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("[...document.querySelectorAll('figure')].every(f => f.querySelector('.plot svg *'))")
    assert browser.run("document.querySelectorAll('figure').length") == 10
    bits = "[...document.querySelectorAll('thead th')].find(th => th.textContent === 'bits/parameter up')"
    assert 0 < browser.run(f"{bits}.getBoundingClientRect().right") < width
    ink = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ink == "rgb(14, 17, 22)") == dark
    shot = base64.b64decode(browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
    (tmp_path / f"{width}.png").write_bytes(shot)
    assert shot.startswith(b"\x89PNG")


def test_a_header_sorts_by_click_and_by_key(browser, address):
    browser.open(address, width=1280)
    methods = "[...document.querySelectorAll('section table')[0].tBodies[0].rows].map(r => r.cells[0].innerText.trim())"
    head = "[...document.querySelectorAll('thead button')].find(b => b.textContent === 'accuracy')"
    before = browser.run(methods)
    browser.run(f"{head}.click()")
    falling = browser.run(methods)
    assert browser.run(f"{head}.parentNode.getAttribute('aria-sort')") == "descending"
    assert [name for name in falling if "script" not in name] == ["qsgd", "fedpm", "fedpm-klms"]
    assert falling != before
    browser.run(f"{head}.focus()")
    browser.press("Enter")
    assert browser.run(methods) == falling[::-1]
    assert browser.run(f"{head}.parentNode.getAttribute('aria-sort')") == "ascending"


def test_a_legend_entry_hides_its_series(browser, address):
    browser.open(address, width=1280)
    figure = "document.getElementById('mnist-iid-lenet-accuracy-rounds')"
    button = f"[...{figure}.querySelectorAll('.legend button')].find(b => b.textContent === 'fedpm-klms')"
    path = f"[...{figure}.querySelectorAll('[data-series]')].find(g => g.dataset.series === 'fedpm-klms')"
    shown = f"{path}.querySelector('path.line').getClientRects().length"
    assert browser.run(shown) == 1
    browser.run(f"{button}.focus(), {button}.click()")
    assert browser.run(shown) == 0
    assert browser.run(f"{button}.getAttribute('aria-pressed')") == "false"
    assert browser.run(f"document.activeElement === {button}")
    browser.press("Enter")
    assert browser.run(shown) == 1


def test_points_tell_their_numbers_to_the_keyboard_and_the_pointer(browser, address):
    browser.open(address, width=390)
    figure = "document.getElementById('mnist-iid-lenet-accuracy-bits')"
    assert browser.run("document.getElementById('tip').hidden")
    browser.run(f"{figure}.querySelector('.plot svg').focus()")
    browser.settle()
    browser.press("ArrowRight")
    assert browser.run("document.getElementById('tip').innerText").splitlines() == [
        "fedpm",
        "accuracy 0.83 ± 0",
        "bits/parameter up 0.5",
    ]
    dot = f"{figure}.querySelector('[data-series=qsgd] .dot')"
    browser.run(f"{dot}.scrollIntoView({{block: 'center'}})")
    browser.settle()
    box = browser.run(f"{dot}.getBoundingClientRect().toJSON()")
    spot = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", **spot)
    browser.settle()
    assert not browser.run("document.getElementById('tip').hidden")
    assert browser.run("document.getElementById('tip').innerText").startswith("qsgd\naccuracy 0.87")
    assert browser.run("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_figure_can_be_saved_as_an_svg_file_that_stands_alone(browser, address, tmp_path, dark):
    browser.open(address, width=390, dark=dark)
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    figure = "document.getElementById('mnist-iid-lenet-accuracy-rounds')"
    hidden = f"[...{figure}.querySelectorAll('.legend button')].find(b => b.textContent === 'qsgd')"
    browser.run(f"{hidden}.click()")
    count = browser.run("document.querySelectorAll('.files button').length")
    assert count == 10
    for index in range(count):
        browser.run(f"document.querySelectorAll('.files button')[{index}].click()")
        until = time.monotonic() + 10
        while len(list(tmp_path.glob("*.svg"))) <= index:
            assert time.monotonic() < until
            time.sleep(0.02)
    assert browser.complaints() == []
    assert browser.requests()[1:] == [url for url in browser.requests()[1:] if url.startswith("blob:")]
    assert not browser.run("document.querySelector('.stage')")
    for file in tmp_path.glob("*.svg"):
        content = file.read_text()
        assert "var(" not in content
        assert "color(" not in content
        root = ElementTree.fromstring(content)
        assert root.get("width") == "720"
        assert root[0].get("fill") == "rgb(255, 255, 255)"
        assert not [element for element in root.iter() if "class" in element.attrib or "style" in element.attrib]
        browser.open(file.as_uri(), width=800)
        assert browser.complaints() == []
        assert browser.requests() == [file.as_uri()]
    curves = ElementTree.parse(tmp_path / "mnist-iid-lenet-accuracy-rounds.svg")
    texts = ["".join(text.itertext()) for text in curves.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Accuracy by round: mnist, i.i.d."
    assert {"fedpm", "fedpm-klms"} <= set(texts)
    assert "qsgd" not in texts


def test_dark_and_light_by_button(browser, address):
    browser.open(address, width=1280)
    colour = "getComputedStyle(document.body).backgroundColor"
    light = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colour) != light
    browser.run("document.getElementById('theme').click()")
    assert browser.run(colour) == light
    browser.run("localStorage.clear()")
