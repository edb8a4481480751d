"""A Flower deployment on this machine, as processes: a SuperLink, SuperNodes, and a relay that counts their bytes."""

from klms.flower.deployment.deployment import Deployment
from klms.flower.deployment.errors import DeploymentFailed
from klms.flower.deployment.relay import Relay, WireBytes

__all__ = ["Deployment", "DeploymentFailed", "Relay", "WireBytes"]
