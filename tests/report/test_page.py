import base64
import json
import re
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.report import page
from klms.report.document import as_json, make
from tests.report.conftest import HOSTILE
from tests.report.folders import gallery, line, write_run, write_settings
from tests.support.waiting import wait_until


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
    assert task["table"]["rows"][0]["method"] == HOSTILE.replace("\u2028", r"\u2028")
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
    write_settings(write_run(tmp_path / "runs" / "broken"), "=")
    result = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "6 runs" in result.output
    assert "left out: broken: config.toml is not TOML" in result.output
    data = embedded((tmp_path / "out" / "index.html").read_text())
    assert "left out: again: it has the same settings and seed as deeper/still/qsgd" in result.output
    assert "incomplete: hurt: line 4 of metrics.jsonl is damaged" in result.output
    assert data["csv"]
    assert data["runs"] == sum(len(task["runs"]) for task in data["tasks"]) == 6
    assert [one["name"] for one in data["left_out"]] == ["broken", "again"]
    assert [one["name"] for one in data["incomplete"]] == ["hurt"]


def test_what_is_left_out_is_nowhere_on_the_page(tmp_path):
    write_run(tmp_path / "runs" / "good", "qsgd")
    write_settings(write_run(tmp_path / "runs" / "broken"), "=")
    write_run(tmp_path / "runs" / "copy", "qsgd", lines=[line(1, 0.123456)])
    hurt = write_run(tmp_path / "runs" / "hurt", "fedpm-klms", described=True, bounds=[0, 10, 45, 100])
    first, _, third = (hurt / "metrics.jsonl").read_text().splitlines()
    (hurt / "metrics.jsonl").write_text("\n".join([first, "garbage", third, ""]))
    report = make([tmp_path / "runs"])
    assert [(one.name, one.why.rpartition("; ")[2]) for one in report.incomplete] == [("hurt", "rounds shown: 1")]
    (task,) = embedded(page.render(as_json(report)))["tasks"]
    assert [run["name"] for run in task["runs"]] == ["hurt", "good"]
    assert task["runs"][0]["columns"]["round"] == [1]
    assert "block-sizes" not in [figure["id"] for figure in task["figures"]]  # of a checkpoint after the damage
    assert not re.search(r"broken|copy|0\.123456", json.dumps(task))


def test_nothing_to_report_is_an_error(tmp_path):
    result = CliRunner().invoke(app, ["report", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "no run to report" in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser(browser, address, tmp_path, width, dark):
    browser.open(address, width=width, dark=dark)
    assert browser.requests() == [address]
    assert browser.complaints() == []
    assert browser.run("window.hacked") is None
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run("[...document.querySelectorAll('figure')].every(f => f.querySelector('.plot > svg *, canvas'))")
    assert browser.run("document.querySelectorAll('figure').length") == 11
    ink = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ink == "rgb(14, 17, 22)") == dark
    shot = base64.b64decode(browser.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])
    (tmp_path / f"{width}.png").write_bytes(shot)
    assert shot.startswith(b"\x89PNG")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_columns_are_in_view_at_any_width(browser, tmp_path, width):
    for seed in range(2):  # long names and wide numbers
        settings = {"seed": seed, "some_setting": "a value of many letters"}
        lines = [line(1, 0.123456, bits=0.0012345 + seed / 1e5, bytes_up=123_456_789, bytes_down=234_567_890)]
        write_run(tmp_path / "runs" / f"a{seed}", "qsgd-klms-of-many-letters", rounds=1, lines=lines, **settings)
        write_run(tmp_path / "runs" / f"b{seed}", "qsgd-klms-of-many-letters", rounds=1, lines=lines, seed=seed, lr=7.0)
    page.write(make([tmp_path / "runs"]), tmp_path / "out")
    browser.open((tmp_path / "out" / "index.html").as_uri(), width=width)
    heads = "[...document.querySelectorAll('.results thead th')].slice(1, 6)"
    names = ["accuracy", "bits/parameter up", "MB up", "MB down", "MB total"]
    assert [name.replace("\xa0", " ") for name in browser.run(f"{heads}.map(head => head.textContent)")] == names
    rows = "[...document.querySelectorAll('.results tr')].map(row => [...row.querySelectorAll('td')].slice(0, 5))"
    ends = browser.run(f"[...{heads}, ...{rows}.flat()].map(cell => cell.getBoundingClientRect().right)")
    assert len(ends) == 3 * 5
    assert max(ends) < browser.run("document.querySelector('.results').getBoundingClientRect().right") <= width
    assert browser.run("document.documentElement.scrollWidth") == width


ROWS = "[...document.querySelector('.results table').tBodies].map(body => body.rows[0].cells[0].innerText.trim())"


def test_a_header_sorts_by_click_and_by_key(browser, address):
    browser.open(address, width=1280)
    head = "[...document.querySelectorAll('thead button')].find(b => b.textContent === 'accuracy')"
    before = browser.run(ROWS)
    browser.run(f"{head}.click()")
    falling = browser.run(ROWS)
    assert browser.run(f"{head}.parentNode.getAttribute('aria-sort')") == "descending"
    assert [name for name in falling if "script" not in name] == ["qsgd", "fedpm", "fedpm-klms"]
    assert falling != before
    browser.run(f"{head}.focus()")
    browser.press("Enter")
    assert browser.run(ROWS) == falling[::-1]
    assert browser.run(f"{head}.parentNode.getAttribute('aria-sort')") == "ascending"


def test_a_filter_selects_rows_everywhere(browser, address):
    browser.open(address, width=1280)
    browser.run("document.querySelector('.filter').focus()")
    browser.call("Input.insertText", text="FEDPM -klms")
    assert browser.run(ROWS) == ["fedpm"]
    assert browser.run("document.querySelector('.count').textContent") == "1 of 4 rows"
    assert browser.run("document.querySelector('#mnist-iid-lenet-accuracy .plot').chart.series.length") == 2
    assert browser.run("document.querySelector('#mnist-iid-lenet-block-sizes .plot').innerText").startswith("Nothing")
    assert browser.run("[...document.querySelectorAll('.legend')][0].innerText").split() == ["fedpm"]
    assert browser.run("[...document.querySelectorAll('.more summary')].at(-1).textContent") == "All runs (2)"
    assert browser.complaints() == []


def open_settings(browser):
    """Open the panel of settings, and return its cells by row."""
    browser.run("document.querySelector('details.more').open = true")
    browser.settle()
    return browser.run(
        "[...document.querySelector('.more table').rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
    )


def test_settings_show_what_differs_and_filter(browser, tmp_path):
    write_run(tmp_path / "runs" / "a", "fedpm-klms", lr=0.1)
    write_run(tmp_path / "runs" / "b", "fedpm-klms", lr=0.1, seed=1)
    write_run(tmp_path / "runs" / "c", "fedpm-klms", lr=0.3, extra=True)
    page.write(make([tmp_path / "runs"]), tmp_path / "out")
    browser.open((tmp_path / "out" / "index.html").as_uri(), width=1280)
    assert open_settings(browser) == [
        ["setting", "fedpm-klms (lr 0.1)", "fedpm-klms (lr 0.3)"],
        ["lr", "0.1", "0.3"],
        ["seed", "0, 1", "0"],
        ["extra", "", "true"],
    ]
    browser.run("document.querySelector('.more input').click()")
    rows = open_settings(browser)
    assert ["model", "lenet", "lenet"] in rows
    assert browser.run("[...document.querySelectorAll('tr.differs')].length") == 3
    browser.run("[...document.querySelectorAll('.more td button')].find(b => b.textContent === '0.3').click()")
    assert browser.run("document.querySelector('.filter').value") == "lr=0.3"
    assert browser.run(ROWS) == ["fedpm-klms\nlr 0.3"]
    assert browser.complaints() == []


def test_every_run_links_to_its_files(browser, address):
    browser.open(address, width=1280)
    browser.run("[...document.querySelectorAll('details.more')].forEach(d => { d.open = true; })")
    row = "[...document.querySelectorAll('.links')].find(cell => cell.parentNode.innerText.includes('qsgd'))"
    links = browser.run(f"[...{row}.querySelectorAll('a')].map(link => [link.textContent, link.href])")
    folder = Path(url2pathname(urlsplit(address).path)).parents[1] / "runs" / "deeper" / "still" / "qsgd"
    assert links == [[name, (folder / name).as_uri()] for name in ("config.toml", "metrics.jsonl")]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_figure_of_any_kind_can_be_saved_as_an_svg_file_that_stands_alone(browser, address, tmp_path, dark):
    browser.call("Page.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    figures = ["accuracy-cost", "accuracy", "kl", "kl-layers", "block-sizes", "phases", "split"]
    for index, figure in enumerate(figures):
        if index % 5 == 0:  # a page may save ten files without being asked to
            browser.open(address, width=390, dark=dark)
            legend = "[...document.querySelectorAll('.tools .legend button')]"
            browser.run(f"{legend}.find(button => button.textContent === 'qsgd').click()")
        browser.run(f"document.querySelector('#mnist-iid-lenet-{figure} .files button').click()")
        wait_until(lambda index=index: len(list(tmp_path.glob("*.svg"))) > index)
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
    curves = ElementTree.parse(tmp_path / "mnist-iid-lenet-accuracy.svg")
    texts = ["".join(text.itertext()) for text in curves.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "Accuracy: mnist, i.i.d."
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
