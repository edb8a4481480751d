"""What the documents show is run."""

import re
from pathlib import Path

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
