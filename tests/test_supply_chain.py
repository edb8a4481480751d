"""What klms is installed with is pinned, digested and named."""

import ast
import json
import re
import sys
import tomllib
from pathlib import Path

from tools import supply_chain

ROOT = Path(__file__).parents[1]


def test_every_pin_has_digests():
    """`make lock` after a change of constraints.txt. torch is installed apart, see SECURITY.md."""
    pins = supply_chain.pins(ROOT / "constraints.txt")
    assert pins.pop("torch")
    assert supply_chain.pins(ROOT / "constraints-hashed.txt") == pins
    digests = supply_chain.hashed(ROOT / "constraints-hashed.txt")
    assert digests.keys() == pins.keys()
    assert all(digests.values())


def test_the_notices_name_every_pinned_package_with_its_licence():
    """`make notices` after a change of constraints.txt."""
    rows = [
        line.strip("| ").split(" | ") for line in (ROOT / "THIRD_PARTY.md").read_text().splitlines() if "| " in line
    ]
    written = {supply_chain._normal(name): (version, licence) for name, version, licence in rows[2:]}
    for name, version in supply_chain.pins(ROOT / "constraints.txt").items():
        assert written[name][0] == version
        assert written[name][1]


def test_the_notices_reproduce_the_licences_of_code_that_is_distributed():
    text = (ROOT / "THIRD_PARTY.md").read_text()
    assert [one.name for one in supply_chain.vendored()] == ["uPlot"]
    assert all(one.licence in text and one.version in text for one in supply_chain.vendored())


def test_the_bill_of_materials_is_cyclonedx_and_the_same_every_time():
    text = supply_chain.sbom()
    document = json.loads(text)
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    references = [component["bom-ref"] for component in document["components"]]
    assert len(set(references)) == len(references) > 20
    assert document["dependencies"] == [{"ref": "klms", "dependsOn": references}]
    assert any(reference.startswith("pkg:pypi/numpy@") for reference in references)
    assert any(reference.startswith("pkg:npm/uplot@") for reference in references)
    assert text == supply_chain.sbom()


def test_every_package_that_is_imported_is_declared():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in project["optional-dependencies"].values() for one in extra]
    declared = {re.split(r"[^\w.-]", one)[0].lower().replace("-", "_") for one in [*project["dependencies"], *extras]}
    names = {"pil": "pillow", "pydantic_core": "pydantic"}
    for file in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                modules = [str(node.module)]
            for module in modules:
                top = module.partition(".")[0].lower()
                known = top in sys.stdlib_module_names or top in ("klms", "klms_app")
                assert known or names.get(top, top) in declared, f"{file.name} imports {top}"
