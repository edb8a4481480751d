"""The live page, from a small server that answers only for its own paths: the page, its data and run files."""

import hashlib
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path

from klms.report import page
from klms.report.collect import FILES, run_folders
from klms.report.document import as_json, make
from klms.runs import run_files
from klms.runs.run_files import CHECKPOINT

DATA = "/data.json"
LOOPBACK = ("127.0.0.1", "::1")


class Server(ThreadingHTTPServer):
    """Serves the page of some run folders."""

    daemon_threads = True

    def __init__(self, places: Sequence[Path | str], host: str = "127.0.0.1", port: int = 0) -> None:
        self._places = list(map(Path, places))
        self._lock = threading.Lock()
        self._seen: list[tuple[Path, int, int]] | None = None
        self._document: dict[str, object] = {}
        self._files: dict[str, Path] = {}
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)

    @property
    def address(self) -> str:
        host = str(self.server_address[0]).replace("0.0.0.0", "127.0.0.1")
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.server_address[1]}/"

    def document(self) -> dict[str, object]:
        """Return the current document. It is made again only when a file of a run folder has changed."""
        with self._lock:
            seen = []
            for folder in chain.from_iterable(map(run_folders, self._places)):
                for path in (folder / name for name in (*FILES, CHECKPOINT)):
                    with suppress(OSError):
                        seen.append((path, path.stat().st_mtime_ns, path.stat().st_size))
            if seen != self._seen:
                self._document = as_json(make(self._places), link=self._link)
                self._seen = seen
            return self._document

    def _link(self, path: Path) -> str:
        """Make the address of a run's file; the address stays the same while the server runs."""
        number = hashlib.sha256(os.fsencode(path.parent)).hexdigest()[:16]
        self._files[f"/runs/{number}/{path.name}"] = path
        return f"runs/{number}/{path.name}"

    def file(self, address: str) -> bytes | None:
        """Return a file that the page links to; None if it does not exist or is a symbolic link."""
        path = self._files.get(address)
        if path is None or path.is_symlink():
            return None
        with suppress(OSError):
            return run_files.read(path.parent, path.name)
        return None

    def expects(self, host: str) -> bool:
        """Return whether to answer this Host header: a foreign page may resolve its own name to this machine."""
        if self.server_address[0] not in LOOPBACK:
            return True
        name = host.rpartition(":")[0] if host[-1:] != "]" and ":" in host else host
        return name.strip("[]") in (*LOOPBACK, "localhost")

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    server_version = "klms"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        found = self._answer() if self.server.expects(self.headers.get("Host", "")) else None
        if found is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, body = found
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
        self.wfile.write(b"" if unchanged else body)

    def _answer(self) -> tuple[str, bytes] | None:
        """Return the type and the content of the requested path; None if there is no such path."""
        if self.path == DATA:
            return "application/json", page.encode({**self.server.document(), "poll": page.POLL_SECONDS}).encode()
        if self.path in ("/", "/index.html"):
            return "text/html; charset=utf-8", page.render(self.server.document(), live=True).encode()
        body = self.server.file(self.path)
        return None if body is None else ("text/plain; charset=utf-8", body)

    def log_message(self, format: str, *args: object) -> None:
        pass  # polling would fill the terminal
