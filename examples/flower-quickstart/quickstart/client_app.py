"""The client: it trains the model that it receives and sends it back."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from quickstart.task import Net, load_train
from quickstart.task import train as train_net

app = ClientApp()


@app.train()
def train(msg: Message, context: Context):
    """Train for one round."""
    torch.set_num_threads(1)
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    config, node = context.run_config, context.node_config
    loader = load_train(config["data"], node["partition-id"], node["num-partitions"], config["images"])
    asked = msg.content["config"]
    loss = train_net(net, loader, config["local-epochs"], asked["lr"], asked.get("proximal-mu", 0.0))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)
