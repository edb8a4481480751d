"""A browser, and a page with every table and figure to open in it."""

import pytest

from klms.report import page
from klms.report.document import make
from tests.report.chromium import Page
from tests.report.folders import gallery, write_run

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&amp;\u2028'\"$x_{"


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
    page.write(make([folder / "runs"]), folder / "out")
    return (folder / "out" / "index.html").as_uri()
