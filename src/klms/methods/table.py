"""The table of methods: one per update scheme, and those that do more than send a compressed difference."""

from klms.compressors.schemes import UPDATE_SCHEMES
from klms.methods import dense, dp_rec, fedpm, langevin, marina
from klms.methods.entry import MethodEntry

_DENSE = [dense.entry(scheme, "fedavg" if name == "float32" else None) for name, scheme in UPDATE_SCHEMES.items()]

METHODS: dict[str, MethodEntry] = {
    entry.name: entry
    for entry in (
        fedpm.FEDPM,
        fedpm.FEDPM_KLMS,
        *_DENSE,
        marina.MARINA,
        fedpm.FEDMASK,
        dp_rec.DP_REC,
        langevin.SGLD,
        langevin.QLSD,
        langevin.SGLD_KLMS,
    )
}
