"""What the shell completes after `klms --install-completion`: names, without importing torch."""

from collections.abc import Iterable


def starting(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that start so."""
    return [name for name in names if name.startswith(incomplete)]


def methods(incomplete: str) -> list[str]:
    """Return the methods whose names start so."""
    from klms.methods.table import METHODS

    return starting(METHODS, incomplete)


def schemes(incomplete: str) -> list[str]:
    """Return the schemes whose names start so."""
    from klms.compressors.schemes import SCHEMES

    return starting(SCHEMES, incomplete)


def experiments(incomplete: str) -> list[str]:
    """Return the experiments whose names start so."""
    from klms.experiments import catalogue

    return starting(catalogue.names(), incomplete)


def data_sets(incomplete: str) -> list[str]:
    """Return the data sets whose names start so."""
    from klms import data

    return starting((info.name for info in data.names()), incomplete)


def profiles(incomplete: str) -> list[str]:
    """Return the profiles whose names start so."""
    from klms.runs.settings import PROFILES

    return starting(PROFILES, incomplete)


def models(incomplete: str) -> list[str]:
    """Return the built-in models whose names start so."""
    from klms.methods.entry import MODELS

    return starting(MODELS, incomplete)


def presets(incomplete: str) -> list[str]:
    """Return the presets whose names start so."""
    from klms.runs.settings import PRESETS

    return starting(PRESETS, incomplete)
