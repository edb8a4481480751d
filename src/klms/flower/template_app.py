"""`klms flower new`: a folder with our apps and a run's settings, for `flwr run`."""

import json
import shutil
from dataclasses import asdict
from importlib import resources
from pathlib import Path

from klms.experiments.settings import SettingsError, to_toml
from klms.flower.settings import ServerSettings
from klms.methods.config import RunConfig

_HEADING = "[tool.flwr.app.config]\n"


def create(folder: Path, config: RunConfig, server: ServerSettings) -> Path:
    """Copy the template. A folder that is there already is left alone."""
    if folder.exists() and any(folder.iterdir()):
        raise SettingsError(f"{folder} is there and not empty: choose another")
    with resources.as_file(resources.files("klms.flower").joinpath("template")) as template:
        shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    project = folder / "pyproject.toml"
    head, heading, _ = project.read_text().partition(_HEADING)
    project.write_text(head + heading + settings(config, server))
    return folder


def settings(config: RunConfig, server: ServerSettings) -> str:
    """All of them, since Flower lets a run change only those that are there."""
    own = "".join(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in asdict(server).items())
    where = "" if config.data_dir is not None else 'data_dir = ""\n'
    return own + to_toml(config) + where
