"""What klms is installed with: third-party notices (THIRD_PARTY.md) and an SBOM in CycloneDX, from installed metadata.

    python tools/supply_chain.py notices > notices.new && mv notices.new THIRD_PARTY.md
    python tools/supply_chain.py sbom > dist/sbom.json

The packages are those of constraints.txt that are installed here, and the digests of their files are those of
constraints-hashed.txt. Neither output depends on the day or the machine.
"""

import hashlib
import json
import re
import sys
import uuid
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^\s\\;]+)", re.MULTILINE)
_DIGEST = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True)
class Component:
    """Code of others: an installed package, or a folder `vendor/NAME` of this repository."""

    registry: str
    """Type of its package URL: `pypi` or `npm`."""
    name: str
    version: str
    licence: str
    digests: tuple[str, ...]

    @property
    def purl(self) -> str:
        return f"pkg:{self.registry}/{_normal(self.name)}@{self.version}"


def packages() -> list[Component]:
    """Return the pinned packages that are installed, in the order of their names."""
    digests = hashed(ROOT / "constraints-hashed.txt")
    found = []
    for name, version in sorted(pins(ROOT / "constraints.txt").items()):
        try:
            installed = metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform
        found.append(Component("pypi", installed["Name"], version, licence(installed), digests.get(name, ())))
    return found


def vendored() -> list[Component]:
    """Return what is under `vendor`; the first line of each README begins with the name and the version."""
    found = []
    for folder in sorted((ROOT / "src" / "klms").rglob("vendor/*")):
        name, version = (folder / "README.md").read_text().replace(",", " ").split()[:2]
        files = sorted(path for path in folder.iterdir() if path.suffix in (".js", ".css"))
        digests = tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)
        found.append(Component("npm", name, version, (folder / "LICENSE").read_text().strip(), digests))
    return found


def pins(file: Path) -> dict[str, str]:
    """Return the version of every package that a requirements file pins."""
    return {_normal(name): version for name, version in _PIN.findall(file.read_text())}


def hashed(file: Path) -> dict[str, tuple[str, ...]]:
    """Return the SHA-256 digests of every package in a requirements file with hashes."""
    parts = re.split(r"^(?=\S)", file.read_text(), flags=re.MULTILINE)
    return {_normal(pin[1]): tuple(_DIGEST.findall(part)) for part in parts if (pin := _PIN.match(part))}


def licence(installed: metadata.PackageMetadata) -> str:
    """Return the licence by its SPDX expression if the package has one, otherwise by its classifiers or free text."""
    if expression := installed.get("License-Expression"):
        return str(expression)
    classifiers = [c.rpartition(" :: ")[2] for c in installed.get_all("Classifier") or [] if c.startswith("License ::")]
    named = [c for c in classifiers if c != "OSI Approved"]
    text = str(installed.get("License") or "").strip().partition("\n")[0]
    return ", ".join(named) or text or "see the package"


def notices() -> str:
    """Return THIRD_PARTY.md."""
    rows = "".join(f"| {name} | {version} | {licence} |\n" for name, version, licence in _named_packages())
    texts = "".join(f"## {one.name} {one.version}\n\n```\n{one.licence}\n```\n\n" for one in vendored())
    return f"""# Third-party software

`make notices` writes this file, from the metadata of the installed packages and the licences under `vendor` folders.

klms is distributed with the code of:

{texts}## Packages

klms is tested and developed with these packages, which pip installs from their own distributions, each with its licence
text; extras are needed only for what they are named after.

| package | version | licence |
| --- | --- | --- |
{rows}"""


def _named_packages() -> list[tuple[str, str, str]]:
    """Return name, version and licence of every pinned package, in the order of their names.

    Extras that clash with others (NVFlare) have environments of their own. What is not installed in this one keeps the
    line that THIRD_PARTY.md already has, as long as the version is the pinned one.
    """
    pinned = pins(ROOT / "constraints.txt")
    written = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", (ROOT / "THIRD_PARTY.md").read_text(), re.MULTILINE)
    found = {_normal(line[0]): line for line in written if pinned.get(_normal(line[0])) == line[1]}
    found |= {_normal(one.name): (one.name, one.version, one.licence.replace("|", "/")) for one in packages()}
    return [found[name] for name in sorted(found)]


def sbom() -> str:
    """Return a bill of materials in CycloneDX 1.5."""
    components = [
        {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "purl": one.purl,
            "licenses": [{"license": {"name": one.licence.partition("\n")[0]}}],
            # A release has many files; the SBOM names all, since which one is installed depends on the platform.
            "properties": [{"name": "klms:sha256", "value": digest} for digest in one.digests],
        }
        for one in [*vendored(), *packages()]
    ]
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src" / "klms" / "__init__.py").read_text())
    assert version is not None
    klms = {"type": "library", "bom-ref": "klms", "name": "klms", "version": version[1]}
    content = json.dumps(components, sort_keys=True)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}",
        "version": 1,
        "metadata": {"component": {**klms, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components,
        "dependencies": [{"ref": "klms", "dependsOn": [one["bom-ref"] for one in components]}],
    }
    return json.dumps(document, indent=2) + "\n"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.stdout.write({"notices": notices, "sbom": sbom}[sys.argv[1]]())
