"""`klms flower new`: a folder with the apps of klms and the settings of a run, for `flwr run`."""

import json
import shutil
from importlib import resources
from pathlib import Path

from klms.errors import InvalidArgument
from klms.flower.settings import ServerSettings
from klms.methods.table import RunConfig
from klms.runs.settings import to_toml


def create(folder: Path | str, config: RunConfig, server: ServerSettings, *, own: bool = False) -> Path:
    """Write the app into an empty folder; with `own`, add functions for model and data that the user can edit."""
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InvalidArgument(f"{folder} exists and is not empty: choose another folder")
    for name in ("template", "template_own") if own else ("template",):
        with resources.as_file(resources.files("klms.flower").joinpath(name)) as template:
            shutil.copytree(template, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    readme = folder / "README.md"
    readme.write_text(readme.read_text().replace("num-supernodes=CLIENTS", f"num-supernodes={config.clients}"))
    settings = "".join(f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in server) + to_toml(config)
    if config.data_dir is None:  # Flower lets a run change only the settings that the file has
        settings += 'data_dir = ""\n'
    with (folder / "pyproject.toml").open("a") as file:
        file.write(f"\n[tool.flwr.app.config]\n{settings}")
    return folder
