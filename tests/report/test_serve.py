import http.client
import json
import signal
import subprocess
import sys
import threading

import pytest

from klms.report.serve import Server
from tests.report.chromium import Page
from tests.report.folders import add_lines, line, write_run
from tests.support.waiting import FOREVER, wait_until


@pytest.fixture
def server(tmp_path):
    write_run(tmp_path / "runs" / "a", rounds=3, lines=[line(1, 0.5)])
    with Server([tmp_path / "runs"]) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield serving
        serving.shutdown()
        thread.join()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=FOREVER)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers
    finally:
        connection.close()


def test_the_page_and_its_data(server):
    status, html, headers = ask(server, "/")
    assert status == 200
    assert headers["Content-Type"].startswith("text/html")
    assert b"connect-src 'self'" in html
    status, body, headers = ask(server, "/data.json")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    data = json.loads(body)
    assert not data["all_finished"]
    assert data["poll"] > 0


def test_a_new_round_is_seen_and_nothing_new_costs_nothing(server, tmp_path):
    _, before, headers = ask(server, "/data.json")
    assert ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})[:2] == (304, b"")
    add_lines(tmp_path / "runs" / "a", line(2, 0.75))
    status, after, _ = ask(server, "/data.json", **{"If-None-Match": headers["ETag"]})
    assert status == 200
    assert after != before
    assert json.loads(after)["tasks"][0]["runs"][0]["rounds"] == "2 of 3"


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/a/config.toml",
        "/../runs/a/config.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/data.json/../../a/config.toml",
        "/data.json?x=1",
        "/..\\..\\secret",
        "/favicon.ico",
    ],
)
def test_no_other_path_leads_anywhere(server, path):
    status, body, _ = ask(server, path)
    assert status == 404
    assert b"method" not in body


def links(server):
    (run,) = json.loads(ask(server, "/data.json")[1])["tasks"][0]["runs"]
    return {name: "/" + address for name, address in run["files"].items()}


def test_the_files_of_a_run_are_served_as_text(server, tmp_path):
    found = links(server)
    assert list(found) == ["config.toml", "metrics.jsonl"]
    for name, address in found.items():
        status, body, headers = ask(server, address)
        assert (status, body) == (200, (tmp_path / "runs" / "a" / name).read_bytes())
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert ask(server, address, Host="evil.example:80")[0] == 404
    assert links(server) == found


@pytest.mark.parametrize("end", ["checkpoint.klms", "../metrics.jsonl", "metrics.jsonl/", "%6detrics.jsonl", ""])
def test_no_other_file_of_a_run_is_served(server, tmp_path, end):
    (tmp_path / "runs" / "a" / "checkpoint.klms").write_bytes(b"weights")
    address = links(server)["metrics.jsonl"]
    assert ask(server, address.removesuffix("metrics.jsonl") + end)[0] == 404


def test_a_file_that_became_a_link_or_vanished_is_not_served(server, tmp_path):
    address = links(server)["metrics.jsonl"]
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "runs" / "a" / "metrics.jsonl").unlink()
    assert ask(server, address)[0] == 404
    (tmp_path / "runs" / "a" / "metrics.jsonl").symlink_to(tmp_path / "secret")
    assert ask(server, address)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get(server, method):
    assert ask(server, "/data.json", method)[0] == 501


def test_a_foreign_name_for_this_machine_gets_nothing(server):
    assert ask(server, "/data.json", Host="evil.example:80")[0] == 404
    assert ask(server, "/data.json", Host="localhost:9")[0] == 200


def heed_interrupts():
    """Undo what a shell does to its background jobs: they start with SIGINT ignored, and hand that down."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_command_prints_its_address_and_ends_with_ctrl_c(tmp_path):
    write_run(tmp_path / "a")
    command = [sys.executable, "-m", "klms", "serve", str(tmp_path), "--port", "0"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts
    )
    try:
        first = process.stdout.readline()
        assert first.startswith("http://127.0.0.1:")
        port = int(first.split("/")[2].split(":")[1])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=FOREVER)
        connection.request("GET", "/data.json")
        assert json.loads(connection.getresponse().read())["runs"] == 1
        connection.close()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=FOREVER)
    finally:
        process.kill()
        process.wait()
    assert rest.strip() == "ended"
    assert errors == ""
    assert process.returncode == 0


def test_a_live_page_follows_the_run(server, tmp_path, monkeypatch):
    monkeypatch.setattr("klms.report.page.POLL_SECONDS", 0.05)
    browser = Page(tmp_path / "profile")
    try:
        browser.open(server.address, width=1280)
        rounds = "document.querySelector('section tbody tr').innerText.includes('2 of 3')"
        assert browser.run(rounds) is False
        add_lines(tmp_path / "runs" / "a", line(2, 0.75))
        wait_until(lambda: browser.run(rounds))
        assert browser.complaints() == []
        assert {url.rpartition("/")[2] for url in browser.requests()} == {"", "data.json"}
    finally:
        browser.close()
