# mypy: ignore-errors
# pyright: reportMissingImports=false
"""Flower's simulation of LeNet-5 rounds, for the Python of an environment that has Flower; prints seconds by round.

    python flower_round.py CLIENTS ROUNDS EPOCHS WORKERS

It imports nothing of FedLens, and does what `emulated_round` does: ten clients of 250 images of 32 x 32 pixels in
batches of 32, evaluated by nobody.
"""

import json
import sys
import time

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn
from torch.nn import functional

IMAGES, SIDE, BATCH, CLASSES, RATE = 250, 32, 32, 10, 0.01
clients, rounds, epochs, workers = map(int, sys.argv[1:])
client_app, server_app = ClientApp(), ServerApp()


def lenet5():
    """The network, with the same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES)),
    )


@client_app.train()
def train(message, context):
    """Train on images that stay in memory for one round only, as Flower's own examples do."""
    torch.set_num_threads(1)
    model = lenet5()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    torch.manual_seed(context.node_config["partition-id"])
    images, labels = torch.rand(IMAGES, 3, SIDE, SIDE), torch.randint(CLASSES, (IMAGES,))
    optimiser = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(epochs):
        for index in torch.split(torch.randperm(IMAGES), BATCH):
            optimiser.zero_grad()
            functional.cross_entropy(model((images[index] - 0.5) * 4), labels[index]).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": IMAGES})}
    return Message(content=RecordDict(content), reply_to=message)


@server_app.main()
def serve(grid, context):
    """Carry out all rounds."""
    times = [time.perf_counter()]

    def ended(number, arrays):
        times.append(time.perf_counter())

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
    # Flower calls it once before the first round.
    strategy.start(grid, ArrayRecord(lenet5().state_dict()), num_rounds=rounds, evaluate_fn=ended)
    print(json.dumps([later - earlier for earlier, later in zip(times[1:], times[2:])]))  # noqa: B905, RUF007


run_simulation(
    server_app,
    client_app,
    num_supernodes=clients,
    backend_config={"init_args": {"num_cpus": workers}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
)
