import tomllib
from importlib import resources

import pytest

from klms.compressors.layout import Layout
from klms.compressors.schemes import SCHEMES
from klms.errors import InvalidArgument
from klms.methods.table import METHODS, RunConfig
from klms.runs.settings import PROFILES, check_built_in, check_effects, parse_options, resolve, to_toml


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
    own = METHODS["trellis"].defaults()
    assert own["rate"] == 1.0
    assert own["quality"] == 1.0
    assert resolve("trellis").quality == 1.0
    assert resolve("trellis", profile="small").rate == 0.1


@pytest.mark.parametrize(
    "given",
    [
        {"rate": 1.0},
        {"rate_schedule": "1"},
        {"round_budget": 9000},
        {"downlink": "coded", "down_rate": 1.0},
        {"downlink": "coded", "down_rate_schedule": "1"},
    ],
)
def test_a_method_that_is_given_bits_holds_no_quality(given):
    assert resolve("trellis", given=given).quality == 0
    with pytest.raises(InvalidArgument, match=r"would have no effect, because quality is 2\.0: omit one of them"):
        taken("trellis", {**given, "quality": 2.0})


def test_a_quality_wins_over_the_rate_of_a_profile_and_survives_toml(tmp_path):
    config = resolve("trellis", profile="small", given={"quality": 2.0})
    assert config.quality == 2.0
    (tmp_path / "config.toml").write_text(to_toml(config))
    assert resolve("trellis", file=tmp_path / "config.toml") == config
    for method in METHODS.keys() - {"trellis"}:
        assert resolve(method).quality == 0
    with pytest.raises(InvalidArgument, match=r"eden cannot choose its rates .* that can: trellis"):
        resolve("eden", given={"quality": 1.0})


def test_a_configuration_survives_toml(tmp_path):
    config = resolve("qsgd-klms", profile="small", given={"bits": 5, "split": "noniid", "data_dir": 'ä/"b"\x7f\n'})
    file = tmp_path / "config.toml"
    file.write_text(to_toml(config))
    assert resolve("qsgd-klms", file=file) == config


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: resolve("fedpm-klsm"), "fedpm-klms"),
        (lambda: resolve("fedpm", profile="smal"), "small"),
        (lambda: resolve("fedpm", given={"round": 3}), "did you mean 'rounds'"),
        (lambda: resolve("fedpm", given={"learning_rate": 3}), "did you mean 'lr'"),
        (lambda: resolve("trellis", given={"bits_per_parameter": 1}), "did you mean 'rate'"),
        (
            lambda: SCHEMES["qsgd"].create(Layout(("x",), ((3,),)), {"levls": 3}),
            "no setting 'levls'; did you mean 'levels'",
        ),
        (lambda: resolve("fedpm", given={"rounds": 0}), "rounds must be at least 1, got 0"),
        (lambda: resolve("fedpm", given={"per_round": 11}), "per_round"),
        (lambda: resolve("fedpm", given={"data_dir": "a\udcffb"}), r"data_dir: the path a\\udcffb is not UTF-8"),
        (lambda: parse_options(["--sever-lr", "1"]), "did you mean --server-lr"),
        (lambda: parse_options(["--zzz", "1"]), "--help lists"),
        (lambda: parse_options(["--batch-size", "1"]), "did you mean --batch?"),
        (lambda: parse_options(["--profle", "x"], ["profile"]), "did you mean --profile"),
        (lambda: parse_options(["--rounds"]), "needs a value"),
        (lambda: parse_options(["rounds"]), "not a setting"),
    ],
)
def test_errors_say_what_is_wrong_and_suggest_names(call, message):
    with pytest.raises(InvalidArgument, match=message):
        call()


@pytest.mark.parametrize("name", [name for name, field in RunConfig.model_fields.items() if field.annotation is float])
@pytest.mark.parametrize("value", ["inf", float("inf"), float("-inf"), float("nan")])
def test_every_number_is_finite(name, value):
    """TOML writes other numbers in another way than JSON."""
    with pytest.raises(InvalidArgument, match=f"{name} must be a finite number, got -?(inf|nan)"):
        resolve("fedavg", given={name: value})


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


WITHOUT_EFFECT = [
    ("trellis", {"down_rate": 0.3}, "down_rate needs downlink coded, not auto"),
    ("trellis", {"down_rate": 1.0, "downlink": "snapshot"}, "down_rate needs downlink coded, not snapshot"),
    (
        "trellis",
        {"downlink": "coded", "down_rate": 1.0, "round_budget": 9000},
        "because round_budget is 9000: omit one",
    ),
    ("trellis", {"downlink": "coded", "down_rate": 0.3, "down_rate_schedule": "1"}, "because down_rate_schedule is 1"),
    (
        "trellis",
        {"rate": 0.3, "rate_schedule": "1:5,0.1"},
        "rate would have no effect, because rate_schedule is 1:5,0.1",
    ),
    ("eden", {"rate": 0.3, "round_budget": 9000}, "rate would have no effect, because round_budget is 9000"),
    ("trellis", {"c_max": 4}, "c_max needs split noniid, not iid"),
    ("trellis", {"alpha": 0.2, "split": "noniid"}, "alpha needs split dirichlet, not noniid"),
    ("fedpm-klms", {"fixed": 256, "target": 4.0}, "target would have no effect, because fixed is 256"),
    ("dp-rec", {"delta": 1e-6}, "delta needs private_randomness system, not auto"),
    ("dp-rec", {"selection": "greedy"}, "dp-rec has no setting selection, which belongs to fedpm-klms"),
    ("sgld", {"lr": 0.1}, "sgld has no setting lr, which belongs to fedpm"),
    ("fedpm", {"levels": 1}, "fedpm has no setting levels, which belongs to qsgd"),
    ("trellis", {"vocabulary": 500}, "mnist is not text: vocabulary would have no effect"),
]
NOT_TOGETHER = [
    ({"data": "shakespeare"}, "shakespeare has texts, which lenet cannot read; models that can: lstm"),
    ({"model": "lstm"}, "mnist has images, which lstm cannot read; models that can: lenet, conv4, conv6, resnet18"),
]


@pytest.mark.parametrize(("method", "given", "message"), WITHOUT_EFFECT)
def test_a_setting_that_would_have_no_effect_is_refused(method, given, message):
    with pytest.raises(InvalidArgument, match=message):
        taken(method, given)


@pytest.mark.parametrize(("given", "message"), NOT_TOGETHER)
def test_a_model_that_cannot_read_the_data_is_refused(given, message):
    with pytest.raises(InvalidArgument, match=message):
        taken("fedavg", given)


def taken(method, given):
    """Do what `klms run` does with settings."""
    config = resolve(method, given=given)
    check_effects(config, given)
    check_built_in(config, given)


def test_settings_that_have_an_effect_are_taken():
    for method, given in [
        ("trellis", {"downlink": "coded", "down_rate": 0.3}),
        ("trellis", {"downlink": "coded", "round_budget": 9000}),
        ("trellis", {"split": "noniid", "c_max": 2}),
        ("dp-rec", {"delta": 1e-6, "private_randomness": "system", "target": 4.0}),
        ("sgld", {"batch": 7}),
        ("trellis", {"data": "shakespeare", "model": "lstm", "vocabulary": 500}),
    ]:
        taken(method, given)


def test_a_rate_of_the_downlink_without_effect_is_refused_in_a_file(tmp_path):
    """A file may be the whole configuration of a run, in which all settings have some value."""
    file = tmp_path / "run.toml"
    file.write_text("down_rate = 0.3\n")
    with pytest.raises(InvalidArgument, match=r"^down_rate needs downlink coded, not auto"):
        resolve("trellis", file=file)
    for method in METHODS:
        file.write_text(to_toml(resolve(method, profile="small")))
        assert resolve(method, file=file) == resolve(method, profile="small")
