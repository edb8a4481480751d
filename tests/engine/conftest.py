"""Workers without processes, whose start takes seconds."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from klms.engine import local


def sent(thing: Any) -> Any:
    """Return what arrives at another process."""
    return pickle.loads(pickle.dumps(thing))


@contextmanager
def pickled_pool(workers: int, start: Callable[..., object], *args: Any) -> Iterator[SimpleNamespace]:
    """Do the work of a pool in this process, but pickle whatever would go to another one or come from there."""
    sent(start)(*sent(args))

    def map_(function: Callable[..., object], *items: Any) -> Iterator[object]:
        return (sent(sent(function)(*sent(arguments))) for arguments in zip(*items, strict=True))

    yield SimpleNamespace(map=map_)


@pytest.fixture(params=["pickled", pytest.param("processes", marks=pytest.mark.soak)])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the number of workers for a test that runs without processes, and in `make soak` also with them."""
    if request.param == "pickled":
        monkeypatch.setattr(local, "pool_of", pickled_pool)
    return 2
