"""klms in NVFlare: `compress(recipe, bits_per_parameter=1)` adds four filters, for the model and updates of any job.

`docs/nvflare.md` shows this in a complete job. Needs the extra `nvflare`.
"""

from collections.abc import Sequence
from typing import Any

from klms.errors import InvalidArgument, MissingExtra

try:
    from nvflare.recipe.spec import Recipe
except ImportError as error:
    raise MissingExtra.told("klms.nvflare needs NVFlare", "nvflare") from error

from klms.nvflare.filters import ReceiveModel, ReceiveUpdate, SendModel, SendUpdate

__all__ = ["ReceiveModel", "ReceiveUpdate", "SendModel", "SendUpdate", "compress"]


def compress(recipe: Recipe, *, tasks: str | Sequence[str] = ("train",), **settings: Any) -> None:
    """Add the four filters to a recipe, for one or several tasks.

    `settings` are arguments of `klms.Server`, but no functions: they travel in the job's configuration. Add filters of
    outgoing data before these four, and filters of incoming data after them.
    """
    if not isinstance(recipe, Recipe):
        raise InvalidArgument(f"compress takes a recipe of NVFlare, such as FedAvgRecipe(...), got {recipe!r}")
    if functions := [name for name, value in settings.items() if callable(value)]:
        raise InvalidArgument(f"{functions[0]} must not be a function: the job's configuration is JSON, which has none")
    names = [tasks] if isinstance(tasks, str) else list(tasks)
    sender = SendModel(settings)
    if not names or vars(recipe).setdefault("klms", sender) is not sender:
        raise InvalidArgument("compress takes at least one task, and is called once for a recipe")
    recipe.add_server_output_filter(sender, tasks=names)
    recipe.add_client_input_filter(ReceiveModel(), tasks=names)
    recipe.add_client_output_filter(SendUpdate(), tasks=names)
    recipe.add_server_input_filter(ReceiveUpdate(), tasks=names)
