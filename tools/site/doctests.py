"""Doctests of docstrings as blocks of code, for mkdocstrings: Markdown would take `>>>` for quotations."""

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^( *)>>> .*(?:\n\1\S.*|\n\1 +\S.*)*", re.MULTILINE)
_DIRECTIVE = re.compile(r" *# doctest:.*")


class Doctests(Extension):
    """Puts every doctest of a docstring between fences."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return a docstring whose doctests are blocks of code."""

    def block(match: re.Match[str]) -> str:
        lines = [_DIRECTIVE.sub("", line) for line in match[0].splitlines()]
        return "\n".join([f"{match[1]}```pycon", *lines, f"{match[1]}```"])

    return _DOCTEST.sub(block, docstring)
