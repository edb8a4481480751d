"""What goes wrong with a deployment."""


class DeploymentFailed(RuntimeError):
    """A process did not start, did not answer, or refused; the message says which, and shows its log."""
