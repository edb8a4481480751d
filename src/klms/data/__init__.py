"""Data sets, the sources they come from, and the ways to split them among clients.

>>> import klms.data
>>> [info.name for info in klms.data.names()][:2]
['mnist', 'fashion-mnist']
>>> parts = klms.data.iid(60_000, clients=10, seed=1)
"""

from klms.data.dataset import Dataset
from klms.data.load import OnStep, check_source, get, load, names
from klms.data.registry import Entry
from klms.data.splits import dirichlet, iid, natural, paper_noniid
from klms.errors import DataError

__all__ = ["DataError", "Dataset", "Entry", "OnStep", "check_source", "get", "load", "names"]
__all__ += ["dirichlet", "iid", "natural", "paper_noniid"]
