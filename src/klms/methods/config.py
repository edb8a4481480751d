"""The configuration of a run: one flat model with the settings of every method and scheme, for TOML and options."""

from typing import TYPE_CHECKING

from pydantic import create_model

from klms.methods.entry import RunSettings
from klms.methods.table import METHODS

if TYPE_CHECKING:
    RunConfig = RunSettings
else:
    _KINDS = dict.fromkeys(kind for entry in METHODS.values() for kind in entry.settings)
    # Python wants no class after one of its own bases.
    _BASES = [kind for kind in _KINDS if not any(kind is not other and issubclass(other, kind) for other in _KINDS)]
    RunConfig = create_model(
        "RunConfig",
        __base__=(RunSettings, *_BASES),
        __module__=__name__,
        __doc__="What a run depends on. A setting that its method does not use changes nothing.",
    )
