"""Run folders to report on, made without training."""

import json
from pathlib import Path

import numpy as np

from klms.frame import Frame, Kind, fingerprint
from klms.methods.state import State
from klms.runs.digests import key_of, settings_with_digest, with_digest
from klms.runs.run_folder import CHECKPOINT, CONFIG, DESCRIPTION, METRICS

DEFAULTS = {
    "data": "mnist",
    "images": 600,
    "split": "iid",
    "c_max": 4,
    "clients": 4,
    "per_round": 0,
    "model": "lenet",
    "lr": 0.1,
    "target": 6.0,
}


def line(number, accuracy=None, *, bits=0.5, bytes_up=1000, bytes_down=4000, kl=None, seconds=None, **more):
    record = {"round": number, "clients": [0, 1], "uplink_bytes": bytes_up, "bits_per_parameter": bits}
    record |= {"message_bytes": [bytes_up // 4, bytes_up - bytes_up // 4], "downlink_bytes": bytes_down}
    if accuracy is not None:
        record |= {"accuracy": accuracy, "nll": 1 - accuracy, "ece": 0.01}
    if kl is not None:
        record |= {"kl_bits_per_parameter": kl, "index_bits_per_parameter": 1.5 * kl, "kl_by_layer": [kl / 2, 2 * kl]}
    parts = seconds or {"train": 3.0, "encode": 0.5, "decode": 0.25, "aggregate": 0.25, "evaluate": 1.0, "total": 5.0}
    return record | {"seconds": parts} | more


def write_run(folder: Path, method="fedpm", *, seed=0, rounds=3, lines=None, described=False, bounds=None, **settings):
    """Write a run; by default, a finished one of three rounds."""
    folder.mkdir(parents=True)
    settings = {"method": method, **DEFAULTS, "rounds": rounds, "seed": seed, **settings}
    toml = "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
    write_settings(folder, toml)
    records = lines or [line(number, 0.8 + number / 100) for number in range(1, rounds + 1)]
    (folder / METRICS).write_text("")
    add_lines(folder, *records)
    if described:
        layers = [{"name": "conv.weight", "size": 60}, {"name": "fc.weight", "size": 40}]
        write_description(folder, {"layers": layers, "split": [[5, 3], [0, 9], [4, 4], [8, 1]]})
    if bounds is not None:
        state = State(3, {"block_bounds": np.array(bounds)})
        checkpoint = Frame(Kind.CHECKPOINT, 3, 0, fingerprint([key(folder)]), state.to_bytes())
        (folder / CHECKPOINT).write_bytes(checkpoint.to_bytes())
    return folder


def write_settings(folder: Path, toml: str) -> None:
    (folder / CONFIG).write_text(settings_with_digest(toml), encoding="utf-8")


def key(folder: Path) -> bytes:
    return key_of((folder / CONFIG).read_text(encoding="utf-8").partition("\n")[2])


def add_lines(folder: Path, *records: dict[str, object]) -> None:
    with (folder / METRICS).open("a") as file:
        file.writelines(with_digest(json.dumps(record), key(folder)) + "\n" for record in records)


def write_description(folder: Path, description: dict[str, object]) -> None:
    (folder / DESCRIPTION).write_text(with_digest(json.dumps(description), key(folder)))


def gallery(root: Path) -> Path:
    """Write runs that fill every table and figure."""
    for seed in range(2):
        write_run(root / f"fedpm-{seed}", "fedpm", seed=seed, described=True)
        sizes = {"bits": 0.02, "bytes_up": 50, "bytes_down": 100}
        klms = [line(n, 0.79 + n / 100 + seed / 1000, kl=0.01 / n, **sizes) for n in (1, 2, 3)]
        write_run(root / f"klms-{seed}", "fedpm-klms", seed=seed, lines=klms, described=True, bounds=[0, 10, 45, 100])
    qsgd = [line(n, 0.9 - n / 100, bits=0.1, bytes_up=200) for n in (1, 2, 3)]
    write_run(root / "deeper" / "still" / "qsgd", "qsgd", lines=qsgd)
    return root
