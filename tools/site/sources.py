"""Files and folders of the repository as pages of the site."""

import subprocess
from pathlib import Path, PurePosixPath

_LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown", ".diff": "diff", ".yaml": "yaml", ".cff": "yaml"}
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"


def page(root: Path, path: PurePosixPath) -> str:
    """Return a page that shows a text file, or all text files of a folder."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--", str(path)], cwd=root, check=True, capture_output=True, text=True
    )
    names = [PurePosixPath(name) for name in tracked.stdout.split("\0") if name]
    if not names:
        raise FileNotFoundError(f"a page links to {path}, which is not in the repository")
    parts = [f"{_UNSEARCHED}# {path}\n"]
    for name in names:
        if name != path:
            parts.append(f"\n## {name.relative_to(path)}\n")
        parts.append(f"\n````{_LANGUAGES.get(name.suffix, 'text')}\n{(root / name).read_text()}````\n")
    return "".join(parts)
