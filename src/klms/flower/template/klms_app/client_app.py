"""The client: `partition-id` in its node config says which one."""

from klms.flower import client_app

app = client_app()
