"""The table of methods, and the configuration of a run: one flat model of the settings of every method and scheme."""

from typing import TYPE_CHECKING

from pydantic import create_model

from klms.compressors.schemes import UPDATE_SCHEMES
from klms.methods import dense, dp_rec, fedpm, langevin, marina
from klms.methods.entry import MethodEntry, RunSettings
from klms.plugins import declared

_DENSE = [dense.entry(scheme, "fedavg" if name == "float32" else None) for name, scheme in UPDATE_SCHEMES.items()]
_LANGEVIN = (langevin.SGLD, langevin.QLSD, langevin.SGLD_KLMS)
_ENTRIES = (fedpm.FEDPM, fedpm.FEDPM_KLMS, *_DENSE, marina.MARINA, fedpm.FEDMASK, dp_rec.DP_REC, *_LANGEVIN)
METHODS: dict[str, MethodEntry] = {entry.name: entry for entry in _ENTRIES}
METHODS |= declared("klms.methods", MethodEntry, METHODS)

if TYPE_CHECKING:
    RunConfig = RunSettings
else:
    _KINDS = dict.fromkeys(kind for entry in METHODS.values() for kind in entry.settings)
    # Python does not allow a base class to be listed before its own subclass.
    _BASES = [kind for kind in _KINDS if not any(kind is not other and issubclass(other, kind) for other in _KINDS)]
    RunConfig = create_model(
        "RunConfig",
        __base__=(RunSettings, *_BASES),
        __module__=__name__,
        __doc__="All settings of a run. A setting that the run's method does not use changes nothing.",
    )
