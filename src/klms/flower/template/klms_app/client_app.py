"""The client, whose number is `partition-id` in the node config."""

from klms.flower import client_app

app = client_app()
