"""With torch.compile: the bookkeeping stays outside the graphs and does not make them compile again."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from orderdp import OrderDP, Pruner
from tests.support import toy_dataset


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def run(pruner: Pruner, step, epochs: int = 3) -> None:
    for _ in range(epochs):
        for index, (x, y) in pruner.loader(toy_dataset(96), batch_size=8, drop_last=True):
            step(index, x, y)


def test_a_compiled_model_trains_and_compiles_once() -> None:
    counter = CompileCounter()
    model = torch.nn.Linear(4, 3)
    compiled = torch.compile(model, backend=counter)
    pruner = Pruner(OrderDP(0.25), 96)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    run(pruner, lambda index, x, y: pruner.update(index, criterion(compiled(x), y)).backward())
    assert counter.frame_count == 1
    assert model.weight.grad is not None
    assert pruner.epoch == 3


# The compiler looks at .grad of a tensor it resumes with, and torch warns about that.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_step_with_update_inside_does_not_compile_again_every_step() -> None:
    counter = CompileCounter()
    model = torch.nn.Linear(4, 3)
    pruner = Pruner(OrderDP(0.25), 96)
    criterion = torch.nn.CrossEntropyLoss(reduction="none")
    frames = []

    @torch.compile(backend=counter)
    def step(index, x, y):
        losses = criterion(model(x), y)
        loss = pruner.update(index, losses)
        return loss * 2

    def recorded(index, x, y):
        step(index, x, y).backward()
        frames.append(counter.frame_count)

    run(pruner, recorded)
    assert frames[-1] == frames[1], "compiled again after the second step"
    assert pruner.epoch == 3
    assert int(pruner.usage.sum()) == 3 * 72


def test_a_step_compiled_as_one_graph_leaves_the_update_outside() -> None:
    model, criterion = torch.nn.Linear(4, 3), torch.nn.CrossEntropyLoss(reduction="none")
    pruner = Pruner(OrderDP(0.25), 96)

    @torch.compile(backend="eager", fullgraph=True)
    def losses(x, y):
        return criterion(model(x), y)

    run(pruner, lambda index, x, y: pruner.update(index, losses(x, y)).backward(), epochs=1)
    assert pruner.epoch == 1

    @torch.compile(backend="eager", fullgraph=True)
    def inside(index, x, y):
        return pruner.update(index, criterion(model(x), y))

    with pytest.raises(torch._dynamo.exc.Unsupported, match="disable"):
        run(pruner, inside, epochs=1)
