"""klms in NVFlare: four filters that compress the model and the updates of any job.

    klms.nvflare.compress(recipe, bits_per_parameter=1)

`docs/nvflare.md` shows this in a complete job. Needs the extra `nvflare`.
"""

from collections.abc import Sequence
from typing import Any

from klms.errors import MissingExtra

try:
    from nvflare.recipe.spec import Recipe
except ImportError as error:
    raise MissingExtra.told("klms.nvflare needs NVFlare", "nvflare") from error

from klms.nvflare.filters import ReceiveModel, ReceiveUpdate, SendModel, SendUpdate

__all__ = ["ReceiveModel", "ReceiveUpdate", "SendModel", "SendUpdate", "compress"]


def compress(recipe: Recipe, *, tasks: Sequence[str] = ("train",), **settings: Any) -> None:
    """Add the four filters to a recipe, for these tasks.

    `settings` are the arguments of `klms.Server`: `bits_per_parameter`, `up`, `down`, `budget`, `scheme`, `seed` and so
    on. They travel in the job's configuration, so that functions of the round cannot be used. Add other filters of
    outgoing data before these four, and other filters of incoming data after them.
    """
    recipe.add_server_output_filter(SendModel(settings), tasks=list(tasks))
    recipe.add_client_input_filter(ReceiveModel(), tasks=list(tasks))
    recipe.add_client_output_filter(SendUpdate(), tasks=list(tasks))
    recipe.add_server_input_filter(ReceiveUpdate(), tasks=list(tasks))
