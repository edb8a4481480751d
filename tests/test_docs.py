"""What the documents show is run."""

import re
import shutil
import subprocess
from pathlib import Path

from klms.compressors.schemes import SCHEMES
from tests.codec.test_message import GOLDEN_WITH_EVERYTHING

ROOT = Path(__file__).parents[1]


def test_the_readme_example_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    code = blocks[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out.strip()
    assert f"# {printed}" in code


def test_the_format_document_shows_the_golden_message():
    text = (ROOT / "docs" / "format.md").read_text()
    shown = "".join(re.findall(r"^\| *\d+ \| `([0-9a-f ]+)`", text, re.MULTILINE)).replace(" ", "")
    assert shown == GOLDEN_WITH_EVERYTHING.replace(" ", "")


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
    assert all(f"`{scheme}`" in text for scheme in SCHEMES)
