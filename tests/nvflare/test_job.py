"""A job with the filters: its configuration, and a run in NVFlare's simulator."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "nvflare"

CLIENT = """
import numpy as np
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": float(model.params["numpy_key"].mean())}))
    elif flare.is_submit_model():
        flare.send(flare.FLModel(params={"numpy_key": np.full((50, 60), 3.0)}))
    else:
        flare.send(flare.FLModel(params={name: array + 1 for name, array in model.params.items()}))
"""
JOB = """
import sys

import klms.nvflare
import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv
from nvflare.recipe.utils import add_cross_site_evaluation

recipe = NumpyFedAvgRecipe(
    name="job", min_clients=2, num_rounds=3, model=np.zeros((50, 60)).tolist(), train_script="client.py"
)
klms.nvflare.compress(recipe, bits_per_parameter=4, seed=1)
if "cross" in sys.argv:
    add_cross_site_evaluation(recipe)
if "export" in sys.argv:
    recipe.export("exported")
else:
    recipe.execute(SimEnv(num_clients=2, num_threads=1, workspace_root="simulated"))
"""


@pytest.fixture
def job(tmp_path):
    pytest.importorskip(
        "nvflare", reason="needs NVFlare: run `make nvflare`, which installs it apart and runs its tests"
    )
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "job.py").write_text(JOB)

    def run(*arguments):
        done = subprocess.run([sys.executable, "job.py", *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    run.folder = tmp_path
    return run


def test_the_configuration_names_the_filters_and_does_not_hold_klms(job):
    job("export")
    found = {}
    for side in ("server", "client"):
        (file,) = job.folder.joinpath("exported").rglob(f"config_fed_{side}.json")
        config = json.loads(file.read_text())
        for chain in ("task_data_filters", "task_result_filters"):
            (entry,) = config[chain]
            assert entry["tasks"] == ["train"]
            found[side, chain] = entry["filters"]
    path = "klms.nvflare.filters"
    settings = {"settings": {"bits_per_parameter": 4, "seed": 1}}
    assert found == {
        ("server", "task_data_filters"): [{"path": f"{path}.SendModel", "args": settings}],
        ("server", "task_result_filters"): [{"path": f"{path}.ReceiveUpdate", "args": {}}],
        ("client", "task_data_filters"): [{"path": f"{path}.ReceiveModel", "args": {}}],
        ("client", "task_result_filters"): [{"path": f"{path}.SendUpdate", "args": {}}],
    }
    assert not [file for file in job.folder.joinpath("exported").rglob("*") if file.name == "klms"]


def test_the_simulator_runs_it_with_fewer_threads_than_clients_and_evaluates_across_sites(job):
    printed = job("cross")
    (line,) = re.findall(r"klms: ([\d,]+) bytes up, ([\d,]+) bytes down", printed)
    up, down = (8 * int(size.replace(",", "")) / (2 * 3 * 3000) for size in line)  # bits per parameter
    assert up < 4.3
    assert down < 6
    assert "asking for the whole model" not in printed  # what clients held survived that they were swapped out
    assert " ERROR " not in printed
    (results,) = job.folder.joinpath("simulated").rglob("cross_val_results.json")
    for site in json.loads(results.read_text()).values():
        assert site.keys() == {"SRV_server", "site-1", "site-2"}  # whole models, as the sites submitted them
    (saved,) = job.folder.joinpath("simulated").rglob("server.npy")
    assert np.load(saved) == pytest.approx(3, abs=0.5)  # every round adds one
    assert np.load(saved).mean() == pytest.approx(3, abs=0.05)


def test_the_example_is_a_stranger_s_job_and_two_lines():
    diff = (EXAMPLE / "compressed.diff").read_text()
    added = [line for line in diff.splitlines() if line[:1] == "+" and line[:3] != "+++"]
    assert [line.strip("+ ") for line in added] == [
        "import klms.nvflare",
        "klms.nvflare.compress(recipe, bits_per_parameter=1)",
    ]
    assert all("klms" not in (EXAMPLE / name).read_text() for name in ("job.py", "client.py", "model.py"))
    subprocess.run(["git", "apply", "--check", "compressed.diff"], cwd=EXAMPLE, check=True)
    assert f"```diff\n{diff}```" in (ROOT / "docs" / "nvflare.md").read_text()


def test_without_nvflare_the_error_says_what_to_install():
    code = "import sys; sys.modules['nvflare'] = None\ntry:\n    import klms.nvflare\nexcept ImportError as e: print(e)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert "pip install -c constraints.txt '.[nvflare]'" in shown
