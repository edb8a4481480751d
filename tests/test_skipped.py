"""The end of a test run says what was not tested."""

import pytest

from tests.report import chromium
from tests.support.skipped import summary_of_skipped


def report_of(test) -> pytest.TestReport:
    """Return pytest's report of a test that is skipped."""
    with pytest.raises(pytest.skip.Exception) as caught:
        test()
    why = ("test_file.py", 1, f"Skipped: {caught.value.msg}")
    return pytest.TestReport("test_file.py::test", ("test_file.py", 1, "test"), {}, "skipped", why, "setup")


def test_every_reason_is_told_once_with_its_number_and_what_to_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    without_package = report_of(lambda: pytest.importorskip("klms_has_no_such_module"))
    browser, package = summary_of_skipped([*[report_of(chromium.program)] * 28, without_package])[::-1]
    assert browser.startswith("28 skipped: needs a browser: install Chromium")
    assert "`make test`" in browser
    assert package.startswith("1 skipped: could not import 'klms_has_no_such_module'")
    assert package.endswith("`make test` installs it")
    assert summary_of_skipped([]) == []
