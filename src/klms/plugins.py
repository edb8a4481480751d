"""Schemes and methods of other packages: those declared as entry points become part of klms, without a fork.

In the other package's `pyproject.toml`:

    [project.entry-points."klms.schemes"]
    count-sketch = "my_package.count_sketch:SCHEME"

    [project.entry-points."klms.methods"]
    fedadam = "my_package.fedadam:METHOD"

A scheme is a `klms.compressors.scheme.Scheme`, and a method is a `klms.methods.entry.MethodEntry`. klms itself never
uses scheme numbers from `FIRST_OWN_NUMBER` on.
"""

from importlib.metadata import entry_points
from typing import Any, TypeVar

from klms.errors import InvalidArgument

FIRST_OWN_NUMBER = 128

T = TypeVar("T")


def declared(group: str, kind: type[T], known: dict[str, Any]) -> dict[str, T]:
    """Return the objects that installed packages declare in a group of entry points, by name.

    Raise an `InvalidArgument` that names the package if an object is of another kind, or if its name is taken.
    """
    found: dict[str, T] = {}
    for point in entry_points(group=group):
        package = point.dist.name if point.dist is not None else point.value
        one = point.load()
        if not isinstance(one, kind):
            raise InvalidArgument(f"{package}: {point.value} is not a {kind.__name__}, as entry points of {group} are")
        name = str(getattr(one, "name", point.name))
        if name in known or name in found:
            raise InvalidArgument(f"{package}: {name!r} of {group} is taken: rename it, or uninstall one package")
        found[name] = one
    return found
