"""An experiment whose runs take a fraction of a second each."""

from pathlib import Path

from klms.experiments.catalogue import Experiment

SMALL = {"images": 0, "clients": 3, "width": 0.2, "rounds": 3, "batch": 16, "evaluate_every": 3, "bits": 5}


def experiment(folder: Path) -> Experiment:
    """The experiment, on the data in `folder`."""
    shape = {"data": ["mnist"], "settings": SMALL | {"data_dir": str(folder)}}
    rows = {"fedpm-klms": {}, "fedavg": {}, "one": {"method": "signsgd"}}
    profiles = {"small": shape | {"one_seed": ["one"]}}
    return Experiment("tiny", "", "", rows, profiles, series=("bits_per_parameter",))
