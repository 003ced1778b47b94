"""A training whose policy stands in a Hydra config, where the command line can change it.

    python -m examples.with_hydra epochs=3 policy.prune_ratio=0.3

The config is examples/with_hydra.yaml; ``_target_: orderdp.build`` makes the words below it a policy. Hydra writes its
logs into a folder ``outputs``. Needs ``pip install hydra-core``.
"""

from __future__ import annotations

import hydra
import torch
from examples.digits import load
from omegaconf import DictConfig

import orderdp


def train(config: DictConfig) -> orderdp.Pruner:
    """Trains as the config says, and prints what was saved."""
    torch.manual_seed(config.seed)
    train_set, test_set = load()
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    policy = hydra.utils.instantiate(config.policy)
    pruner = orderdp.Pruner(policy, train_set, seed=config.seed, epochs=config.epochs)
    loader = pruner.loader(train_set, batch_size=config.batch_size)
    for _ in range(config.epochs):
        for index, (x, y) in loader:
            loss = pruner.update(index, criterion(model(x), y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    x, y = test_set.tensors
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    print(f"test accuracy {accuracy:.2%} with {policy}: {pruner.report()['saved']:.1%} fewer samples")
    return pruner


main = hydra.main(version_base="1.3", config_path=".", config_name="with_hydra")(train)

if __name__ == "__main__":
    main()
