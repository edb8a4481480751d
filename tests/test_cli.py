import os
import re
import subprocess
import sys
from pathlib import Path

import click
import click.shell_completion
import pytest
import typer.main
from typer.testing import CliRunner

import klms
from klms.cli import app
from klms.methods.entry import RUN_GROUPS, RunSettings
from klms.methods.table import METHODS, RunConfig
from tests.report.folders import write_run
from tests.support.commands import printed_json

runner = CliRunner()


def commands(group=None, path=()):
    """Every command without subcommands, by the words that call it."""
    group = group or typer.main.get_command(app)
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


def test_version():
    assert runner.invoke(app, ["--version"]).output.strip() == klms.__version__


@pytest.mark.parametrize("command", list(commands()), ids=" ".join)
def test_help_has_an_example_and_explains_every_option(command):
    shown = runner.invoke(app, [*command, "--help"])
    assert shown.exit_code == 0
    assert f"klms {' '.join(command)}" in shown.output.partition("Example")[2]
    found = typer.main.get_command(app)
    for name in command:
        found = found.commands[name]
    assert all(parameter.help for parameter in found.params)


def test_what_does_not_train_works_without_torch(tmp_path):
    write_run(tmp_path / "runs" / "one")
    calls = [
        *(["methods"], ["experiment", "list"], ["data", "list"], ["experiment", "status", "table1"]),
        ["report", str(tmp_path / "runs"), "--out", str(tmp_path / "report")],
        *([*command, "--help"] for command in commands()),
    ]
    program = f"""
import sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from klms.cli import app
for call in {calls!r}:
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 0, (call, shown.output, shown.exception)
for call in (["run", "fedavg"], ["demo"], ["export", "run"], ["experiment", "run", "table1"]):
    shown = CliRunner().invoke(app, call)
    assert shown.exit_code == 1, call
    assert "needs torch: run pip install -c constraints.txt '.[learn]' in the" in shown.output, (call, shown.output)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_methods_are_listed_with_their_papers():
    shown = runner.invoke(app, ["methods"]).output
    assert all(entry.name in shown and entry.reference in shown for entry in METHODS.values())


@pytest.mark.parametrize(
    "command", [["methods", "trellis"], ["run", "trellis", "--help"], ["run", "--help", "trellis"]]
)
def test_the_settings_of_a_method_are_listed_with_default_range_and_meaning(command):
    shown = runner.invoke(app, command).output
    assert re.search(r"--rate\W+1\.0\W+0\.0001 to 8\W+trellis: bits per parameter", shown)
    assert re.search(r"--optimizer\W+adam\W+sgd, momentum, adam\W", shown)
    assert re.search(r"--rounds\W+20\W+from 1\W", shown)
    assert "--gamma" not in shown  # a setting of other methods


def test_settings_that_a_method_does_not_use_are_not_listed():
    shown = runner.invoke(app, ["methods", "sgld"]).output
    assert "--batch " in shown
    assert "--lr " not in shown


def test_the_help_of_run_lists_the_settings_of_every_run():
    shown = runner.invoke(app, ["run", "--help"]).output
    general = [name for name in RunSettings.model_fields if name != "method"]
    assert all(f"--{name.replace('_', '-')} " in shown for name in general)
    assert "Settings of the downlink" in shown
    assert {name for group in RUN_GROUPS for name in group.model_fields} == set(general)
    assert all(field.description for name, field in RunConfig.model_fields.items() if name != "method")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "fedpm-klms", "--rouns", "3"], "did you mean --rounds?"),
        (["run", "fedpm-klms", "--profle", "small"], "did you mean --profile?"),
        (["run", "nope"], f"choose one of {', '.join(METHODS)}"),
        (["run"], "name a method"),
        (["run", "trellis", "--down-rate", "0.3"], "down_rate needs downlink coded, not auto"),
        (["run", "trellis", "--down-rate", "1.0"], "down_rate needs downlink coded, not auto"),
        (["run", "fedavg", "--learning-rate", "1.0"], "did you mean --lr?"),
        (["run", "fedavg", "--device", "gpu"], "device must be auto, cpu, cuda or mps, got gpu"),
        (["run", "fedpm-klms", "--levels", "4"], "fedpm-klms has no setting levels, which belongs to qsgd"),
        (["run", "qsgd", "--data", "mnst"], "there is no data set 'mnst'; did you mean 'mnist'?"),
        (["run", "qsgd", "--model", "lenett"], "there is no model 'lenett'; did you mean 'lenet'?"),
        (["run", "qsgd", "--rounds", "0"], "rounds must be at least 1, got 0"),
        (["run", "qsgd", "--lr", "-0.5"], "lr must be above 0, got -0.5"),
        (["run", "qsgd", "--levels", "2.5"], "levels must be a whole number, got 2.5"),
        (["run", "qsgd", "--optimizer", "sdg"], "optimizer must be sgd, momentum or adam, got sdg"),
        (["methods", "fedpm-klsm"], "did you mean 'fedpm-klms'"),
        (["run", "fedavg", "--resume", "runs/x"], "keeps its settings"),
        (["run", "--resume", "nowhere"], "not the folder of a run"),
        (["data", "get", "mnits"], "mnist"),
        (["bench", "codec", "--family", "poisson"], "bernoulli"),
        (["bench", "codec", "--bits", "17"], "bits must be in [1, 16], got 17"),
        (["bench", "mean", "--scheme", "qsdg"], "qsgd"),
        (["report", "nowhere"], "no run to report"),
        (["report", __file__], "this is not a folder"),
        (["inspect", "[/bold]none"], "No such file"),
        (["run", "fedavg", "--out", __file__], f"{__file__} is a file"),
        (["demo", "--out", f"{__file__}/x"], "Not a directory"),
        (["export", "nowhere", "--out", __file__], "not the folder of a run"),
        (["flower", "new", __file__], "Not a directory"),
    ],
)
def test_mistakes_are_explained(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = runner.invoke(app, arguments)
    assert shown.exit_code == 1
    assert message in shown.output
    assert not list(Path().iterdir())


def test_help_shows_brackets():
    assert "theta stays in [margin, 1 - margin]" in runner.invoke(app, ["methods", "fedpm"]).output


def test_bench_prints_json():
    few = ["--family", "gaussian", "--bits", "2", "--d", "20000", "--no-scaling"]
    rows = printed_json("bench", "codec", *few)["rows"]
    assert {row["family"] for row in rows} == {"gaussian"}
    assert all(row["encode_ns"] > 0 and row["decode_ns"] > 0 for row in rows)


def test_a_benchmark_says_how_far_it_is_though_there_is_no_terminal():
    few = ["--vectors", "gaussian", "--scheme", "terngrad", "--scheme", "drive", "--d", "2000", "--clients", "2"]
    shown = runner.invoke(app, ["bench", "mean", *few])
    assert shown.exit_code == 0, shown.output
    assert "measured 1 of 3: gaussian" in shown.output


def test_the_library_imports_neither_torch_nor_flower_nor_the_command_line():
    heavy = "torch flwr typer rich matplotlib"
    lazy = "assert {'compress', 'decompress', 'federate', 'Run', *klms.__all__} <= set(dir(klms))"
    check = f"import sys, klms, klms.codec; {lazy}; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_export_is_reached_after_import_klms_alone():
    check = "import klms; print(klms.runs.export.own_model.__name__, klms.runs.export.load.__name__)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert done.stdout.strip() == "own_model load", done.stderr


def completed(*words: str) -> list[str]:
    """What click completes the last word to."""
    words, incomplete = list(words[:-1]), words[-1]
    finder = click.shell_completion.ShellComplete(typer.main.get_command(app), {}, "klms", "_KLMS_COMPLETE")
    return [item.value for item in finder.get_completions(words, incomplete)]


def test_commands_complete_their_arguments_and_the_settings_of_a_method():
    assert completed("run", "sgld-") == ["sgld-klms"]
    assert completed("methods", "sgld-") == ["sgld-klms"]
    assert completed("run", "fedpm") == ["fedpm", "fedpm-klms"]
    assert completed("run", "x") == []
    assert completed("run", "trellis", "--profile", "s") == ["small"]
    assert completed("run", "trellis", "--preset", "p") == ["paper"]
    assert completed("run", "trellis", "--model", "le") == ["lenet"]
    assert completed("experiment", "run", "table1", "--profile", "") == ["small", "cpu", "paper"]
    assert completed("experiment", "run", "table") == ["table1", "table2"]
    assert completed("experiment", "status", "table1", "--data", "mn") == ["mnist"]
    assert completed("data", "get", "mn") == ["mnist"]
    assert completed("bench", "mean", "--scheme", "ed") == ["eden"]
    assert completed("run", "trellis", "--down") == ["--downlink", "--down-rate", "--down-rate-schedule"]
    assert completed("run", "trellis", "--rounds", "3", "--downlink", "c") == ["coded"]
    assert completed("run", "trellis", "--data", "mn") == ["mnist"]
    assert completed("run", "sgld", "--optim") == []
    assert completed("run", "qsgd", "--optim") == ["--optimizer"]


def test_the_shell_asks_for_completions():
    """This is what the script of `klms --install-completion` runs."""
    asked = {"_KLMS_COMPLETE": "complete_bash", "COMP_WORDS": "klms run fedpm", "COMP_CWORD": "2"}
    program = "import sys; sys.modules['torch'] = None; from klms.cli import app; app(prog_name='klms')"
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["fedpm", "fedpm-klms"]
