"""The page: one file that needs nothing else, whatever the runs are called.

Two walls keep a hostile name or setting from becoming script: the data is JSON in which no character can end its
element, written to the page as text only; and the page's own policy runs no script but the one whose hash it names.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib import resources

SCRIPTS = ("dom.js", "scales.js", "curves.js", "panels.js", "table.js", "page.js")
POLL_SECONDS = 3


def render(document: Mapping[str, object], *, live: bool = False) -> str:
    """HTML. A live page asks for `data.json` beside it, again and again; the other asks for nothing."""
    script = "(() => {\n'use strict';\n" + "\n".join(_asset(name) for name in SCRIPTS) + "})();\n"
    style = _asset("page.css")
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "STYLE": style,
        "SCRIPT": script,
        "DATA": embed({**document, "poll": POLL_SECONDS if live else 0}),
    }
    html = _asset("page.html")
    head, *rest = html.split("{{")
    return head + "".join(parts[name] + after for name, _, after in (piece.partition("}}") for piece in rest))


def embed(value: object) -> str:
    """JSON that can stand in a script element: no `<`, `>` or `&`, and no NaN."""
    return encode(value).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def encode(value: object) -> str:
    """Short JSON, of ASCII only."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _asset(name: str) -> str:
    return resources.files("klms.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
