"""The live page: a small server that reads the run folders again when they have changed.

It answers GET for three fixed paths and never opens a file that a request names. Unless told otherwise, only this
machine can reach it.
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
from klms.report.collect import run_folders
from klms.report.document import as_json, make
from klms.runs.run_folder import CHECKPOINT, CONFIG, DESCRIPTION, METRICS

DATA = "/data.json"
LOOPBACK = ("127.0.0.1", "::1")
Signature = tuple[tuple[str, int, int], ...]


class Source:
    """The document of the run folders, which is made again only when a file has changed."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = list(places)
        self._lock = threading.Lock()
        self._signature: Signature | None = None
        self._document: dict[str, object] = {}

    def document(self) -> dict[str, object]:
        """The current document."""
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
                for name in (CONFIG, METRICS, CHECKPOINT, DESCRIPTION):
                    try:
                        stat = (folder / name).stat()
                    except OSError:
                        continue
                    seen.append((str(folder / name), stat.st_mtime_ns, stat.st_size))
        return tuple(seen)


class Server(ThreadingHTTPServer):
    """Server of the page of some run folders."""

    daemon_threads = True

    def __init__(self, places: Sequence[Path], host: str = "127.0.0.1", port: int = 0) -> None:
        self.source = Source(places)
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        """URL of the page."""
        host, port = str(self.server_address[0]), int(self.server_address[1])
        shown = "127.0.0.1" if host == "0.0.0.0" else f"[{host}]" if ":" in host else host
        return f"http://{shown}:{port}/"

    def expects(self, host: str) -> bool:
        """Whether to answer this Host header: a foreign page may resolve its own name to this machine."""
        if self.server_address[0] not in LOOPBACK:
            return True
        name = host.rpartition(":")[0] if host[-1:] != "]" and ":" in host else host
        return name.strip("[]") in (*LOOPBACK, "localhost")

    def handle_error(self, request: object, client_address: object) -> None:
        """Report errors, except that a browser closed its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "klms"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """Answer for one of the fixed paths."""
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
        """Print nothing: polling would fill the terminal."""
