"""The training step that proxies, plans and experiments share, against loops written out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from orderdp._training import TrainState, build_optimizer, cosine
from orderdp.coresets import Proxy
from orderdp.coresets.proxy import own_generators

X = torch.randn(70, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
CPU = torch.device("cpu")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


def seeded_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return net()


def forward(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(X[batch]), Y[batch], reduction="none")


def state_of(model: nn.Module, lr: float = 0.1, **options) -> TrainState:
    return TrainState(model, build_optimizer("sgd", model, lr=lr), forward, lr=lr, **options)


def batches(size: int = 10):
    return ((part, part) for part in torch.arange(70).split(size))


def equal(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours | theirs)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_proxy_has_the_weights_of_a_plain_loop(nesterov: bool) -> None:
    """The oracle: SGD as in any tutorial, with the proxy's generators and order."""
    proxy = Proxy(net, (X, Y), epochs=3, batch_size=32, lr=0.05, nesterov=nesterov, seed=4)
    with own_generators(4, "proxy", 0, "weights", device=CPU):
        model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4, nesterov=nesterov)
    for epoch in range(1, 4):
        model.train()
        with own_generators(4, "proxy", 0, "train", epoch, device=CPU):
            for indices in proxy.recipe.order(70, 0, epoch):
                logits = model(X[indices])
                loss = nn.functional.cross_entropy(logits, Y[indices])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                np.testing.assert_array_equal(proxy.correct()[epoch - 1][indices], logits.argmax(1) == Y[indices])
    assert equal(proxy.model(), model)


def test_the_learning_rate_follows_schedule_and_scale() -> None:
    state = state_of(seeded_net(), lr=0.4, schedule=cosine)
    served, seen = batches(35), []
    while state.train_step(served, lambda index, losses: losses.mean(), done=lambda: state.steps / 2, scale=0.5):
        seen.append(state.lr)
    assert seen == pytest.approx([0.2, 0.1])
    assert state.steps == 2


def test_a_batch_without_a_loss_makes_no_step() -> None:
    state, before = state_of(seeded_net().eval()), seeded_net().eval()
    served = batches()
    while state.train_step(served, lambda index, losses: None):
        pass
    assert state.steps == 0
    assert equal(state.model, before)


def test_gradients_of_several_batches_make_one_step() -> None:
    state = state_of(seeded_net().eval())
    assert state.train_step(batches(14), lambda index, losses: losses.mean(), accumulate=5)
    whole = state_of(seeded_net().eval())
    assert whole.train_step(batches(70), lambda index, losses: losses.mean())
    assert state.steps == whole.steps == 1
    for one, other in zip(state.model.parameters(), whole.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_end_of_the_data_is_told_and_costs_no_step() -> None:
    state, served = state_of(seeded_net()), batches(35)
    assert [state.train_step(served, lambda index, losses: losses.mean()) for _ in range(3)] == [True, True, False]
    assert state.steps == 2
