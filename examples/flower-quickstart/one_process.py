"""Run the app with all clients in this process: Flower's apps and strategies without its network.

    PYTHONPATH=../.. python one_process.py APP NODES '{"data": "digits.npz", ...}'

`compare.py` uses this script for its many runs; one run takes about a minute on one core.
"""

import json
import sys
import tomllib
from pathlib import Path

from tests.flower.in_process import InProcessGrid, serve


def main(folder: str, nodes: str, settings: str) -> None:
    """Run the server of the app in this folder to its end."""
    sys.path.insert(0, folder)
    from quickstart.client_app import app as client
    from quickstart.server_app import app as server

    defaults = tomllib.loads((Path(folder) / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config = {**defaults, **json.loads(settings)}
    serve(server, InProcessGrid(client, int(nodes), config), config)


if __name__ == "__main__":
    main(*sys.argv[1:])
