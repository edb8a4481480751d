"""Notebooks as pages: executed from beginning to end, then written as Markdown with their pictures."""

import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import MarkdownExporter

_QUIET = ["--log-level=ERROR"]  # the kernel would warn of unencrypted ports, which are open to this machine alone
LONGEST = 300
"""Seconds that a cell may take before the build fails; on one idle core, a whole notebook takes less than a minute."""


def execute(notebook: Path) -> dict[str, str | bytes]:
    """Return the files of the site that a notebook becomes, by their places: a page, pictures, and the notebook itself.

    An error in any cell fails the build.
    """
    started = time.monotonic()
    book = nbformat.read(notebook, as_version=4)
    resources = {"metadata": {"path": notebook.parent}}
    NotebookClient(book, timeout=LONGEST, kernel_name="python3", resources=resources, extra_arguments=_QUIET).execute()
    for cell in book.cells:  # libraries warn of this machine there
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    body, written = MarkdownExporter().from_notebook_node(book, {"output_files_dir": f"{notebook.stem}_files"})
    print(f"{notebook.name}: executed in {time.monotonic() - started:.0f} s")
    folder = f"{notebook.parent.name}/"
    download = f'<a href="{notebook.name}" download>Download this notebook</a> with its outputs.\n'
    pictures = {folder + name: data for name, data in written["outputs"].items()}
    return {
        f"{folder}{notebook.stem}.md": f"{body}\n{download}",
        f"{folder}{notebook.name}": nbformat.writes(book),
        **pictures,
    }
