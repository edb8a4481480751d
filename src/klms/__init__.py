"""klms: federated-learning updates at the cost of their KL divergence."""

from klms import theory
from klms.codec import *  # noqa: F403
from klms.codec import __all__ as _codec_names

__version__ = "0.1.0"
__all__ = ["__version__", "theory", *_codec_names]
