"""Hooks of MkDocs (mkdocs.yml): pages that are generated, and links that lead out of docs/.

Pages under docs/ are read on a code host, too, so their links are those of the repository. The site has no other files
than pages; what a page links to outside docs/ becomes a page of the site, and the link is changed to lead there.
"""

import os
import re
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.site import command_line, notebooks, sources

ROOT = Path(__file__).parents[2]
DOCS = PurePosixPath("docs")
ROOT_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "THIRD_PARTY.md": "third-party.md",
}
"""Pages at the root of the repository, and what they are called in the site."""
_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not under docs/."""
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    for notebook in sorted((ROOT / DOCS / "notebooks").glob("*.ipynb")):
        for uri, content in notebooks.execute(notebook).items():
            if existing := files.get_file_from_path(uri):
                files.remove(existing)
            files.append(File.generated(config, uri, content=content))
    for path in _linked_sources(files):
        files.append(File.generated(config, _uri(path), content=sources.page(ROOT, path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the command line where a page asks for it, and change the links."""
    if command_line.MARK in markdown:
        markdown = markdown.replace(command_line.MARK, command_line.document())
    origin = _origin(page.file.src_uri)

    def changed(match: re.Match[str]) -> str:
        target = _uri(_target(origin, match[1]))
        return f"]({os.path.relpath(target, PurePosixPath(page.file.src_uri).parent)}{match[2] or ''})"

    return _outside_fences(lambda text: _LINK.sub(changed, text), markdown)


def _linked_sources(files: Files) -> list[PurePosixPath]:
    """Return the files and folders that pages link to and that are no pages themselves."""
    found = set()
    for file in files.documentation_pages():
        origin = _origin(file.src_uri)
        for link, _ in _LINK.findall(_FENCE.sub("", file.content_string)):
            target = _target(origin, link)
            if not target.is_relative_to(DOCS) and str(target) not in ROOT_PAGES:
                found.add(target)
    return sorted(found)


def _origin(uri: str) -> PurePosixPath:
    """Return where in the repository the page is that has this place in the site."""
    at_root = {there: here for here, there in ROOT_PAGES.items()}
    return PurePosixPath(at_root[uri]) if uri in at_root else DOCS / uri


def _target(origin: PurePosixPath, link: str) -> PurePosixPath:
    """Return where in the repository a link leads."""
    return PurePosixPath(os.path.normpath(origin.parent / link))


def _uri(path: PurePosixPath) -> str:
    """Return the place in the site of a path in the repository."""
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS)).replace(".ipynb", ".md")
    return ROOT_PAGES.get(str(path), f"source/{path}.md")


def _outside_fences(change, markdown: str) -> str:  # type: ignore[no-untyped-def]
    """Apply a change to all text that is not a block of code."""
    parts, place = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[place : fence.start()]), fence[0]]
        place = fence.end()
    return "".join([*parts, change(markdown[place:])])
