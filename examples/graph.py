"""A graph: node classification with mini-batches of nodes, in plain torch.

The nodes are 1,797 handwritten digits. Each knows the upper half of its image only; its edges lead to the ten images
that are most like it on the whole, as a paper cites papers like it. A third of the nodes have labels to train on.

The score of a node is its cross-entropy. What is left out of an epoch are nodes to predict, not nodes of the graph: a
node that was not drawn is still there as a neighbor, and its features are read. So the saving is in the number of
predictions, and the score of a node depends on what the model makes of its neighbors, too.

    python -m examples.graph [--epochs 40] [--seeds 0,1,2] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time
from functools import cache
from typing import NamedTuple

import torch
from examples.comparing import Result, compare, read_options
from sklearn.datasets import load_digits
from sklearn.neighbors import NearestNeighbors
from torch import nn
from torch.nn import functional as F

import orderdp

BATCH_SIZE = 32
DEGREE = 10


class Graph(NamedTuple):
    """Nodes with features and labels, the neighbors of each, and which nodes are for training."""

    features: torch.Tensor
    labels: torch.Tensor
    neighbors: torch.Tensor
    train_nodes: torch.Tensor
    test_nodes: torch.Tensor


@cache
def load() -> Graph:
    images, labels = load_digits(return_X_y=True)
    nearest = NearestNeighbors(n_neighbors=DEGREE + 1).fit(images).kneighbors(images, return_distance=False)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return Graph(
        features=torch.tensor(images[:, :32] / 16, dtype=torch.float32),
        labels=torch.tensor(labels),
        neighbors=torch.tensor(nearest[:, 1:]),  # the nearest is the image itself
        train_nodes=order[:600],
        test_nodes=order[600:],
    )


class NodeClassifier(nn.Module):
    """Two rounds of: join what a node is with the mean of what its neighbors are."""

    def __init__(self, graph: Graph, width: int = 48) -> None:
        super().__init__()
        self.graph = graph
        self.first = nn.Linear(2 * graph.features.shape[1], width)
        self.second = nn.Linear(2 * width, 10)

    def forward(self, nodes: torch.Tensor) -> torch.Tensor:
        around = self.graph.neighbors[nodes]
        return self.second(torch.cat((self.embed(nodes), self.embed(around).mean(-2)), dim=-1))

    def embed(self, nodes: torch.Tensor) -> torch.Tensor:
        own = self.graph.features[nodes]
        around = self.graph.features[self.graph.neighbors[nodes]].mean(-2)
        return F.relu(self.first(torch.cat((own, around), dim=-1)))


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 1e-2) -> Result:
    torch.manual_seed(seed)
    graph = load()
    model = NodeClassifier(graph)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    # The data set is the list of nodes to train on: index says where in this list, the batch which node it is.
    pruner = orderdp.Pruner(policy, graph.train_nodes, seed=seed, epochs=epochs)
    loader = pruner.loader(graph.train_nodes, batch_size=BATCH_SIZE)

    start = time.process_time()
    for _ in range(epochs):
        for index, nodes in loader:
            losses = F.cross_entropy(model(nodes), graph.labels[nodes], reduction="none")
            loss = pruner.update(index, losses)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.process_time() - start
    return Result(accuracy(model), pruner.report()["kept"], seconds, pruner, model)


@torch.no_grad()
def accuracy(model: NodeClassifier) -> float:
    graph = model.graph
    right = model(graph.test_nodes).argmax(1) == graph.labels[graph.test_nodes]
    return 100 * right.float().mean().item()


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    return compare(train, read_options(__doc__, epochs=40, seeds="0,1,2", arguments=arguments), "accuracy %")


if __name__ == "__main__":
    main()
