import tomllib
from importlib import resources

import pytest

from klms.errors import InvalidArgument
from klms.methods.table import METHODS
from klms.runs.settings import PROFILES, parse_options, resolve, to_toml


@pytest.mark.parametrize("profile", PROFILES)
def test_profiles_name_existing_methods_and_settings(profile):
    tables = tomllib.loads(resources.files("klms.runs").joinpath("profiles", f"{profile}.toml").read_text())
    assert set(tables) - {"all"} <= set(METHODS)
    for method in METHODS:
        config = resolve(method, profile=profile)
        for name, value in {**tables["all"], **tables.get(method, {})}.items():
            assert getattr(config, name) == value


def test_the_last_source_wins(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("rounds = 7\nlr = 0.5\n")
    config = resolve("fedpm", profile="small", file=file, given={"lr": "0.25"})
    assert (config.rounds, config.lr, config.optimizer) == (7, 0.25, "adam")


def test_the_defaults_of_the_method_come_first():
    own = METHODS["klms"].defaults()
    assert own["rate"] == 1.0
    assert resolve("klms").rate == 1.0
    assert resolve("klms", profile="small").rate == 0.1


def test_a_name_that_changed_is_told():
    with pytest.raises(InvalidArgument, match="'klms-rotated' is now 'klms'"):
        resolve("klms-rotated")


def test_a_configuration_survives_toml(tmp_path):
    config = resolve("qsgd-klms", profile="small", given={"bits": 5, "split": "noniid", "data_dir": 'ä/"b"'})
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert resolve("qsgd-klms", file=file) == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resolve("fedpm-klsm"), "fedpm-klms"),
        (lambda: resolve("fedpm", profile="smal"), "small"),
        (lambda: resolve("fedpm", given={"round": 3}), "rounds"),
        (lambda: resolve("fedpm", given={"rounds": 0}), "rounds must be at least 1, got 0"),
        (lambda: resolve("fedpm", given={"per_round": 11}), "per_round"),
        (lambda: parse_options(["--sever-lr", "1"]), "did you mean --server-lr"),
        (lambda: parse_options(["--zzz", "1"]), "--help lists"),
        (lambda: parse_options(["--profle", "x"], ["profile"]), "did you mean --profile"),
        (lambda: parse_options(["--rounds"]), "needs a value"),
        (lambda: parse_options(["rounds"]), "not a setting"),
    ],
)
def test_errors_say_what_is_wrong_and_suggest_names(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()


def test_a_settings_file_that_cannot_be_read(tmp_path):
    with pytest.raises(InvalidArgument, match=r"none.toml: No such file"):
        resolve("fedpm", file=tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = ")
    with pytest.raises(InvalidArgument, match=r"bad.toml is not TOML"):
        resolve("fedpm", file=tmp_path / "bad.toml")


def test_options():
    assert parse_options(["--server-lr", "0.5", "--bits=4"]) == {"server_lr": "0.5", "bits": "4"}


def test_the_paper_s_own_rule_is_a_preset():
    config = resolve("fedpm-klms", profile="small", preset="paper", given={"rounds": 3})
    assert (config.bits, config.memory, config.target) == (8, 0, 8.0)
    assert (config.selection, config.aggregate, config.rounds) == ("sample", "location", 3)
    with pytest.raises(InvalidArgument, match="papr"):
        resolve("fedpm-klms", preset="papr")
