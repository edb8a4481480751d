"""The settings of our apps: those of a run, and the server's own, all in `[tool.flwr.app.config]`."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from klms.experiments.settings import SettingsError, resolve
from klms.methods.config import RunConfig


@dataclass(frozen=True)
class ServerSettings:
    """What a run on one machine does not need."""

    run_folder: str = "runs/flower"
    """Where the ledger and the checkpoint are; a server that finds a run there goes on with it."""
    min_replies: int = 1
    """With fewer sound replies a round is passed over."""
    round_timeout: float = 600.0
    """Seconds until a client that has not answered counts as missing."""
    join_timeout: float = 120.0
    """Seconds to wait for a client that was never seen."""

    @property
    def folder(self) -> Path:
        """As a path."""
        return Path(self.run_folder).expanduser()


_OWN = {field.name: type(field.default) for field in fields(ServerSettings)}


def run_config(given: Mapping[str, object]) -> RunConfig:
    """The run, of what `flwr run` hands to an app; names may have hyphens."""
    values = {name: value for name, value in _plain(given).items() if name not in _OWN}
    if values.get("data_dir") == "":  # Flower's settings cannot be left out
        del values["data_dir"]
    method = values.pop("method", None)
    if not isinstance(method, str):
        raise SettingsError('the app\'s config names no method; say for instance method = "fedpm-klms"')
    return resolve(method, given=values)


def server_settings(given: Mapping[str, object]) -> ServerSettings:
    """The server's own."""
    values: dict[str, object] = {}
    for name, value in _plain(given).items():
        if name not in _OWN:
            continue
        kind = _OWN[name]
        if kind is float and isinstance(value, int):
            value = float(value)
        if not isinstance(value, kind) or isinstance(value, bool) or (not isinstance(value, str) and value <= 0):  # type: ignore[operator]
            raise SettingsError(f"{name.replace('_', '-')} must be a {kind.__name__} above 0, not {value!r}")
        values[name] = value
    return ServerSettings(**values)  # type: ignore[arg-type]


def _plain(given: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("-", "_"): value for name, value in given.items()}
