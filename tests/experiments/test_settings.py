import pytest
from typer.testing import CliRunner

from klms.cli import app
from klms.experiments import export
from klms.experiments.settings import PROFILES, SettingsError, parse_options, profile_settings, resolve, to_toml
from klms.methods.registry import METHODS
from tests.small_data import write_mnist

runner = CliRunner()


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_settings_in_every_profile(profile, method):
    config = resolve(method, profile=profile)
    assert config.method == method


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_name_methods_that_there_are(profile):
    import tomllib
    from importlib import resources

    text = resources.files("klms.experiments").joinpath("profiles", f"{profile}.toml").read_text()
    assert set(tomllib.loads(text)) - {"all"} <= set(METHODS)
    assert profile_settings(profile, "fedavg")


def test_the_later_source_wins(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("rounds = 7\nlr = 0.5\n")
    config = resolve("fedpm", profile="small", file=file, given={"lr": "0.25"})
    assert (config.rounds, config.lr, config.optimizer) == (7, 0.25, "adam")


def test_a_configuration_survives_toml(tmp_path):
    config = resolve("qsgd-klms", profile="small", given={"bits": 5, "split": "noniid"})
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert resolve("qsgd-klms", file=file) == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resolve("fedpm-klsm"), "fedpm-klms"),
        (lambda: resolve("fedpm", profile="smal"), "small"),
        (lambda: resolve("fedpm", given={"round": 3}), "rounds"),
        (lambda: resolve("fedpm", given={"rounds": 0}), "rounds"),
        (lambda: resolve("fedpm", given={"per_round": 11}), "per_round"),
        (lambda: parse_options(["--sever-lr", "1"]), "server_lr"),
        (lambda: parse_options(["--zzz", "1"]), "there are"),
        (lambda: parse_options(["--rounds"]), "needs a value"),
        (lambda: parse_options(["rounds"]), "not a setting"),
    ],
)
def test_what_is_wrong_is_said_with_the_nearest_name(call, message):
    with pytest.raises(SettingsError, match=message):
        call()


def test_options():
    assert parse_options(["--server-lr", "0.5", "--bits=4"]) == {"server_lr": "0.5", "bits": "4"}


def test_the_command_line_runs_shows_and_exports(tmp_path):
    folder = write_mnist(tmp_path / "mnist")
    out = tmp_path / "run"
    arguments = ["--rounds", "2", "--data-dir", str(folder), "--width", "0.2", "--clients", "3", "--images", "0"]
    result = runner.invoke(app, ["run", "fedpm-klms", "--profile", "small", "--out", str(out), *arguments])
    assert result.exit_code == 0, result.output
    assert "fedpm-klms" in result.output
    exported = runner.invoke(app, ["export", str(out)])
    assert exported.exit_code == 0, exported.output
    file = out / "model.klms"
    model = export.load(file)
    d = sum(p.numel() for p in model.parameters())
    assert file.stat().st_size < d / 8 + 600
    assert 0.3 < float((model.output.weight == 0).float().mean()) < 0.7  # a mask
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(bytes(data))
    with pytest.raises(export.CorruptMessage):
        export.load(file)

    wrong = runner.invoke(app, ["run", "fedpm-klms", "--rouns", "3"])
    assert wrong.exit_code == 1
    assert "rounds" in wrong.output
    nothing = runner.invoke(app, ["run"])
    assert nothing.exit_code == 1
    listed = runner.invoke(app, ["methods"])
    assert all(name in listed.output for name in METHODS)
    assert "mnist" in runner.invoke(app, ["data", "list"]).output


def test_dense_models_are_exported_too(tmp_path):
    folder = write_mnist(tmp_path / "mnist")
    out = tmp_path / "run"
    arguments = ["--rounds", "1", "--data-dir", str(folder), "--width", "0.2", "--clients", "3", "--images", "0"]
    assert runner.invoke(app, ["run", "fedavg", "--out", str(out), *arguments]).exit_code == 0
    assert runner.invoke(app, ["export", str(out), "--out", str(tmp_path / "m")]).exit_code == 0
    model = export.load(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size > 4 * sum(p.numel() for p in model.parameters())
