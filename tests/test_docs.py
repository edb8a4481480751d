"""The documents agree with the code."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
import typer.main

import klms
from klms.cli import app
from klms.compressors.schemes import UPDATE_SCHEMES
from klms.methods.table import RunConfig
from tests.support.messages import GOLDEN_WITH_EVERYTHING
from tests.test_plugins import installed, run

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("file", "shown"),
    [("README.md", "klms.Codec"), ("docs/tutorial.md", "klms.federate"), ("docs/exchange.md", "klms.Server")],
)
def test_the_examples_run(file, shown, capsys):
    """Where the last line of an example is a comment, it shows what the example prints."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)
    assert any(shown in code for code in examples)
    for code in examples:
        lines = [line for line in code.splitlines() if line.strip()]
        assert len(lines) <= 12
        exec(compile(code, file, "exec"), {})
        printed = capsys.readouterr().out.strip()
        assert printed
        if lines[-1].startswith("#"):
            assert lines[-1] == f"# {printed}"


def test_the_readme_shows_what_its_first_example_loses_at_each_rate():
    text = (ROOT / "README.md").read_text()
    names: dict[str, Any] = {}
    exec(compile(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], "README.md", "exec"), names)
    update, key = names["update"], klms.SharedKey(seed=7, round=3, client=12)
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    rows = {name: numbers for name, *numbers in lines}
    shown = zip(rows["bits per parameter"], rows["bytes"], rows["relative squared error"], strict=True)
    energy = np.square(update["weight"]).sum()
    for rate, size, error in shown:
        message = klms.compress(update, float(rate), key=key, rng=np.random.default_rng(0))
        lost = np.square(klms.decompress(message, key=key)["weight"] - update["weight"]).sum() / energy
        assert len(message) == pytest.approx(int(size.replace(",", "")), rel=0.01)
        assert lost == pytest.approx(float(error), rel=0.03)


def test_the_format_document_shows_the_golden_message():
    text = (ROOT / "docs" / "format.md").read_text()
    shown = "".join(re.findall(r"^\| *\d+ \| `([0-9a-f ]+)`", text, re.MULTILINE)).replace(" ", "")
    assert shown == GOLDEN_WITH_EVERYTHING.replace(" ", "")


def test_the_commands_in_the_documents_exist():
    for file in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = file.read_text()
        fences = re.findall(r"^```(\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        code = "\n".join(block for language, block in fences if not language)
        for line in [*re.findall(r"^klms ([a-z].*)", code, re.MULTILINE), *re.findall(r"`klms ([a-z][^`]*)`", text)]:
            words = line.partition("#")[0].split()
            if words == ["agreement", "1"]:  # a text of the message format
                continue
            command = typer.main.get_command(app)
            while words and isinstance(command, click.Group):
                assert words[0] in command.commands, f"{file.name}: klms {line}"
                command = command.commands[words.pop(0)]
            known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
            known |= {"--help"} | {f"--{name.replace('_', '-')}" for name in RunConfig.model_fields}
            options = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert options <= known, f"{file.name}: klms {line}"


def test_the_flower_document_shows_the_diff_and_the_diff_applies(tmp_path):
    example = ROOT / "examples" / "flower-quickstart"
    text = (ROOT / "docs" / "flower.md").read_text()
    (shown,) = re.findall(r"```diff\n(.*?)```", text, re.DOTALL)
    assert shown == (example / "compressed.diff").read_text()
    shutil.copytree(example, tmp_path / "app")
    subprocess.run(["git", "apply", "compressed.diff"], cwd=tmp_path / "app", check=True)
    changed = [line for line in shown.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert len(changed) == 4  # two imports, two lines
    assert "compress()" in (tmp_path / "app" / "quickstart" / "client_app.py").read_text()
    assert all("klms" not in file.read_text() for file in (example / "quickstart").glob("*.py"))
    assert all(f"`{scheme}`" in text for scheme in UPDATE_SCHEMES)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "tutorials").glob("*.md")), ids=lambda page: page.stem)
def test_the_tutorials_run(page, capsys, tmp_path, monkeypatch):
    """The examples of a page are one program: later ones use what earlier ones defined."""
    monkeypatch.chdir(tmp_path)
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
    if "torch" in code:
        pytest.importorskip("torch")
    exec(compile(code, str(page), "exec"), {"__name__": "tutorial"})
    assert capsys.readouterr().out or not code


def test_the_scheme_and_the_method_of_the_tutorials_work_as_packages(tmp_path):
    pytest.importorskip("torch")
    use = """
import numpy as np, klms, torch
from klms.methods.table import METHODS
clients = [(np.ones((8, 20), np.float32), np.array([0, 1] * 4))] * 2
for method, settings in {"ternary-dither": {"dither_clip": 2.0}, "fedprox": {"mu": 0.1}}.items():
    run = klms.federate(torch.nn.Linear(20, 2), clients, method=method, rounds=2, **settings)
    print(method, run.rounds, METHODS[method].title)
"""
    for name, group in (("scheme", "klms.schemes"), ("method", "klms.methods")):
        text = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text()
        code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:2])
        (point,) = re.findall(rf'"{group}"\]\n(.*) = "my_package:(.*)"', text)
        installed(tmp_path, {group: f"{point[0]} = my_{name}:{point[1]}"}, f"my_{name}", code)
    found = run(tmp_path, use)
    assert found.stdout.splitlines()[-2:] == [
        "ternary-dither 2 Three levels, rounded at random",
        "fedprox 2 FedAvg with a proximal term",
    ], found.stderr


def test_the_workflows_call_targets_that_exist():
    targets = set(re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = {
        target
        for file in (ROOT / ".github" / "workflows").glob("*.yml")
        for line in re.findall(r"run: make (.*)", file.read_text())
        for target in line.split()
    }
    assert called == {"check", "test", "docs", "dist", "sbom"}
    assert called <= targets


def test_the_changelog_has_the_version():
    notes = (ROOT / "CHANGELOG.md").read_text()
    assert re.findall(r"^## (\S+)", notes, re.MULTILINE)[0] in (klms.__version__, "Unreleased")
    assert f"version: {klms.__version__}\n" in (ROOT / "CITATION.cff").read_text()
