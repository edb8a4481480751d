"""Progress of long-running work, for a program that asks for it or a user who waits."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from klms.numerics.parallel import Progress


@contextmanager
def reporting(progress: Progress | bool, title: str) -> Iterator[Progress | None]:
    """Yield the function that receives progress, or None.

    If `progress` is True and standard error is a terminal, this function updates a bar with this title.
    """
    if progress is True and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
    else:
        yield None if isinstance(progress, bool) else progress
