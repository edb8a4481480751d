"""A Flower deployment on this machine: processes of a SuperLink and SuperNodes, and a relay that counts bytes."""

from klms.errors import DeploymentFailed
from klms.flower.deployment.deployment import Deployment
from klms.tcp_relay import Relay, WireBytes

__all__ = ["Deployment", "DeploymentFailed", "Relay", "WireBytes"]
