"""A browser to test with: headless Chromium, driven by its DevTools protocol through two pipes, without a package."""

import fcntl
import json
import os
import select
import shutil
import signal
from pathlib import Path

import pytest

from tests.support.waiting import FOREVER

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOW_TO_GET_ONE = (
    f"install Chromium (on Debian: apt-get install chromium), so that one of {', '.join(NAMES)} is on PATH, "
    "and run `make test` again"
)
OPTIONS = ("--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars", "--no-first-run")
OPTIONS += ("--disable-background-networking", "--disable-dev-shm-usage", "--no-default-browser-check")
OPTIONS += ("--disable-component-update", "--disable-sync")


def program() -> str:
    """Find the browser; without one the test is skipped."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or pytest.skip(f"needs a browser: {HOW_TO_GET_ONE}")


def _pipe() -> tuple[int, int]:
    """Open a pipe whose descriptors are neither 3 nor 4."""
    low = os.pipe()
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in low]
    for fd in low:
        os.close(fd)
    return high[0], high[1]


class Page:
    """One page of one browser; `events` holds the events that it sent."""

    def __init__(self, profile: Path) -> None:
        command = [program(), *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
        if os.geteuid() == 0:
            command.insert(1, "--no-sandbox")
        theirs_in, self._out = _pipe()
        self._in, theirs_out = _pipe()
        quiet = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        # The protocol reads from descriptor 3 and writes to 4.
        wanted = ((quiet, 0), (quiet, 1), (quiet, 2), (theirs_in, 3), (theirs_out, 4))
        actions = [(os.POSIX_SPAWN_DUP2, fd, number) for fd, number in wanted]
        self._pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setpgroup=0)
        for fd in (quiet, theirs_in, theirs_out):
            os.close(fd)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.events: list[dict] = []
        pages = self.call("Target.getTargets")["targetInfos"]
        target = next(page["targetId"] for page in pages if page["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._count:
            self.events.append(answer)
        assert "error" not in answer, answer
        return answer["result"]

    def open(self, url: str, *, width: int, dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def run(self, script: str) -> object:
        """Evaluate an expression; a promise is awaited."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until the page is drawn and has handled its scroll events."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def press(self, key: str) -> None:
        code = {"Enter": 13, "ArrowRight": 39, "Tab": 9, "Escape": 27, "+": 187}[key]
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def point(self, selector: str, x: float, y: float, kind: str = "mouseMoved", **more) -> None:
        """Send an event of the mouse at a place within an element, given as shares of its width and height."""
        box = self.run(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
        self.call("Input.dispatchMouseEvent", type=kind, **place, **more)

    def drag(self, selector: str, start: float, end: float) -> None:
        """Draw the mouse across an element, between two shares of its width."""
        self.point(selector, start, 0.5)
        self.point(selector, start, 0.5, "mousePressed", button="left", buttons=1, clickCount=1)
        self.point(selector, (start + end) / 2, 0.5, button="left", buttons=1)
        self.point(selector, end, 0.5, button="left", buttons=1)
        self.point(selector, end, 0.5, "mouseReleased", button="left", clickCount=1)
        self.settle()

    def requests(self) -> list[str]:
        return [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[dict]:
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def close(self) -> None:
        try:
            self._session = None
            self.call("Browser.close")
        except (OSError, AssertionError, EOFError):
            os.killpg(self._pid, signal.SIGKILL)
        finally:
            os.close(self._out)
            os.close(self._in)
            os.waitpid(self._pid, 0)

    def _receive(self) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], FOREVER)
            assert ready, "the browser does not answer"
            part = os.read(self._in, 1 << 20)
            if not part:
                raise EOFError("the browser has ended")
            self._buffer += part
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)
