"""Learning, in torch: models, local training, evaluation. Models are functions of one flat vector of parameters."""

try:
    import torch
except ModuleNotFoundError as error:  # pragma: no cover - depends on what is installed
    raise ModuleNotFoundError("training needs torch: pip install 'klms[learn]'") from error

__all__ = ["torch"]
