"""The page, live: a small server that reads the run folders again when they have changed.

It answers GET for three fixed paths and looks at no other part of the disk, whatever it is asked. It is bound to this
machine unless told otherwise: the numbers of a run are nobody else's business by default.
"""

import hashlib
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from klms.report import page
from klms.report.collect import CHECKPOINT, CONFIG, FACTS, METRICS, run_folders
from klms.report.document import as_json, make

DATA = "/data.json"
LOOPBACK = ("127.0.0.1", "::1")
Signature = tuple[tuple[str, int, int], ...]


class Source:
    """The document of the run folders, made anew only when a file has changed."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = list(places)
        self._lock = threading.Lock()
        self._signature: Signature | None = None
        self._document: dict[str, object] = {}

    def document(self) -> dict[str, object]:
        """As of now."""
        with self._lock:
            signature = self._look()
            if signature != self._signature:
                self._document = as_json(make(self._places))
                self._signature = signature
            return self._document

    def _look(self) -> Signature:
        seen = []
        for place in self._places:
            for folder in run_folders(place):
                for name in (CONFIG, METRICS, CHECKPOINT, FACTS):
                    try:
                        stat = (folder / name).stat()
                    except OSError:
                        continue
                    seen.append((str(folder / name), stat.st_mtime_ns, stat.st_size))
        return tuple(seen)


class Server(ThreadingHTTPServer):
    """Serves the page of some run folders."""

    daemon_threads = True

    def __init__(self, places: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.source = Source(places)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/"

    def expects(self, host: str) -> bool:
        """Whether a request's Host may be answered: a foreign page must not reach this machine by a name of its own."""
        if self.server_address[0] not in LOOPBACK:
            return True
        name = host.rpartition(":")[0] if host[-1:] != "]" and ":" in host else host
        return name.strip("[]") in (*LOOPBACK, "localhost")

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "klms"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """One of the fixed paths."""
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html; charset=utf-8", lambda: page.render(self.server.source.document(), live=True)),
            DATA: (
                "application/json",
                lambda: page.encode({**self.server.source.document(), "poll": page.POLL_SECONDS}),
            ),
        }
        pages["/index.html"] = pages["/"]
        if self.path not in pages or not self.server.expects(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, content = pages[self.path]
        body = content().encode()
        tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        unchanged = self.headers.get("If-None-Match") == tag
        self.send_response(HTTPStatus.NOT_MODIFIED if unchanged else HTTPStatus.OK)
        self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-cache")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if not unchanged:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not unchanged:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A line every few seconds would bury what the terminal says."""
