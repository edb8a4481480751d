"""Settings of the apps of klms: those of a run and those of the server, both in `[tool.flwr.app.config]`."""

from collections.abc import Mapping

from pydantic import ConfigDict, Field

from klms.compressors.scheme import Settings
from klms.errors import InvalidArgument
from klms.methods.table import RunConfig
from klms.runs.settings import resolve


class ServerSettings(Settings):
    """Settings of the server that a run on one machine does not need."""

    model_config = ConfigDict(strict=True)

    run_folder: str = Field("runs/flower", description="Folder of ledger and checkpoint; a run found there is resumed.")
    min_replies: int = Field(1, ge=1, description="A round with fewer sound replies is skipped.")
    round_timeout: float = Field(600.0, gt=0, description="Seconds after which a silent client counts as missing.")
    join_timeout: float = Field(120.0, gt=0, description="Seconds to wait for a client that was never seen.")
    client_secrets: bool = Field(
        False, description="Let only the server read what a client sends; needs the downlink snapshot or coded."
    )


def run_config(given: Mapping[str, object]) -> RunConfig:
    """Return the settings of the run among those that `flwr run` passes to an app; names may have hyphens."""
    values = {name: v for name, v in _with_underscores(given).items() if name not in ServerSettings.model_fields}
    if values.get("data_dir") == "":  # Flower has no way to leave a setting out
        del values["data_dir"]
    method = values.pop("method", None)
    if not isinstance(method, str):
        raise InvalidArgument('the app\'s config names no method; add one, such as method = "fedpm-klms"')
    return resolve(method, given=values)


def server_settings(given: Mapping[str, object]) -> ServerSettings:
    """Return the settings of the server among those that `flwr run` passes to an app."""
    values = _with_underscores(given)
    return ServerSettings.checked({name: values[name] for name in ServerSettings.model_fields if name in values})


def _with_underscores(given: Mapping[str, object]) -> dict[str, object]:
    return {name.replace("-", "_"): value for name, value in given.items()}
