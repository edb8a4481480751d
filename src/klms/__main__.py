"""`python -m klms` is the `klms` command."""

from klms.cli import app

app()
