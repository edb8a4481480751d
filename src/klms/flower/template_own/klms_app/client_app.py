"""The client, whose number is `partition-id` in the node config."""

from klms.flower import client_app

from .task import client_data, model

app = client_app(model=model, data=client_data)
