"""An epoch that is interrupted means the same in one process (a notebook's cell that is run again) and in a new one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from orderdp import OrderDP, Pruner
from tests.ranks import MemoryRank, all_fine, in_threads
from tests.support import fake_losses

N, EPOCHS, BATCH_SIZE = 50, 3, 8

SETUP = f"""
import signal, torch, orderdp
from torch.utils.data import TensorDataset

torch.manual_seed(0)
dataset = TensorDataset(torch.randn({N}, 4), torch.randint(0, 2, ({N},)))
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = torch.nn.CrossEntropyLoss(reduction="none")
pruner = orderdp.Pruner(orderdp.OrderDP(0.4, every=EVERY), dataset, seed=0, epochs={EPOCHS})
loader = pruner.loader(dataset, batch_size={BATCH_SIZE}, num_workers=WORKERS)
steps = pruner.steps({EPOCHS}, {BATCH_SIZE})
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)
batches, turns = [], []
"""

CELL = """
for epoch in pruner.remaining_epochs():
    turns.append(epoch)
    for index, (x, y) in loader:
        loss = pruner.update(index, criterion(model(x), y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        batches.append(index.tolist())
        if len(batches) in interrupt_at:
            interrupt_at.remove(len(batches))
            signal.raise_signal(signal.SIGINT)
"""

NOTEBOOK = """
import code, json, sys
every, workers, interrupt_at = json.loads(sys.argv[1])
runs = len(interrupt_at) + 1
shown = []
kernel = code.InteractiveInterpreter({"EVERY": every, "WORKERS": workers, "interrupt_at": interrupt_at})
kernel.write = shown.append
kernel.runsource(SETUP, "setup", "exec")
for _ in range(runs):
    kernel.runsource(CELL, "cell", "exec")
values = kernel.locals
weights = values["model"].weight.flatten().tolist()
lr = values["scheduler"].get_last_lr()
print(json.dumps([values["batches"], values["turns"], values["steps"], values["pruner"].epoch, weights, lr, shown]))
"""


def run_notebook(folder: Path, every: str, workers: int, interrupt_at: list[int]) -> list:
    script = folder / "notebook.py"
    script.write_text(f"SETUP = {SETUP!r}\nCELL = {CELL!r}\n{NOTEBOOK}")
    arguments = [sys.executable, str(script), json.dumps([every, workers, interrupt_at])]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result: list = json.loads(done.stdout)
    return result


@pytest.mark.parametrize(
    ("every", "workers", "interrupt_at"), [("epoch", 0, [2, 6]), ("batch", 0, [5]), ("epoch", 1, [3])]
)
def test_an_interrupted_cell_that_is_run_again_trains_what_an_uninterrupted_one_trains(
    tmp_path: Path, every: str, workers: int, interrupt_at: list[int]
) -> None:
    straight = run_notebook(tmp_path, every, workers, [])
    interrupted = run_notebook(tmp_path, every, workers, interrupt_at)
    assert not straight[6]
    assert len(interrupted[6]) == len(interrupt_at)
    assert all(text.rstrip().endswith("KeyboardInterrupt") for text in interrupted[6])
    assert len(straight[0]) == straight[2]  # as many steps as the schedule was given
    assert interrupted[0] == straight[0]
    assert interrupted[2:6] == straight[2:6]
    assert straight[1] == [0, 1, 2]
    assert sorted(set(interrupted[1])) == [0, 1, 2]


@pytest.mark.parametrize("table", ["replicated", "sharded"])
@pytest.mark.parametrize("left_after", [1, 2, 3, 4])
def test_resume_in_the_process_serves_what_a_new_process_serves(left_after: int, table: str) -> None:
    def begun() -> Pruner:
        pruner = Pruner(OrderDP(0.4), N, seed=3, epochs=4, table=table)
        for step, batch in enumerate(pruner.batch_sampler(BATCH_SIZE), 1):
            pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch)))
            if step == left_after:
                break
        return pruner

    here, there, fresh = begun(), begun(), Pruner(OrderDP(0.4), N, seed=3, epochs=4, table=table)
    fresh.load_state_dict(there.state_dict())
    here.resume()
    assert here.epoch == fresh.epoch
    for _ in range(3):
        served = []
        for pruner in (here, fresh):
            served.append(list(pruner.batch_sampler(BATCH_SIZE)))
            for batch in served[-1]:
                pruner.update(torch.tensor(batch), fake_losses(torch.tensor(batch)))
        assert served[0] == served[1]
    assert here.progress == fresh.progress


def test_a_loop_over_numbers_that_calls_resume_trains_the_right_number_of_epochs() -> None:
    pruner = Pruner(OrderDP(0.4), N, epochs=EPOCHS)
    steps, interrupted = 0, False

    def cell() -> None:
        nonlocal steps, interrupted
        pruner.resume()
        for _ in range(pruner.epoch, EPOCHS):
            for batch in pruner.batch_sampler(BATCH_SIZE):
                pruner.update(torch.tensor(batch), torch.rand(len(batch)))
                steps += 1
                if steps == 6 and not interrupted:
                    interrupted = True
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cell()
    cell()
    assert steps == pruner.steps(EPOCHS, BATCH_SIZE)
    assert pruner.done


def test_resume_does_nothing_where_no_epoch_was_interrupted() -> None:
    pruner = Pruner(OrderDP(0.4), N, epochs=2)
    pruner.resume()
    first = next(iter(pruner.batch_sampler(BATCH_SIZE)))
    pruner.resume()
    assert next(iter(pruner.batch_sampler(BATCH_SIZE))) == first
    for batch in pruner.batch_sampler(BATCH_SIZE):
        pruner.update(torch.tensor(batch), torch.rand(len(batch)))
    pruner.resume()
    assert pruner.epoch == 1


def test_an_epoch_that_is_left_on_purpose_still_ends_where_the_loop_goes_on() -> None:
    pruner = Pruner(OrderDP(0.4), N, epochs=3)
    for _ in pruner.remaining_epochs():
        for batch in pruner.batch_sampler(BATCH_SIZE):
            pruner.update(torch.tensor(batch), torch.rand(len(batch)))
            break
    assert pruner.report()["kept"] == 3 * BATCH_SIZE


def test_ranks_that_are_interrupted_at_one_step_resume_together() -> None:
    def work(group: MemoryRank) -> list[int]:
        pruner = Pruner(OrderDP(0.4), N, process_group=group, epochs=2)
        trained = []
        for number in range(2):
            pruner.resume()
            for step, batch in enumerate(pruner.batch_sampler(4)):
                pruner.update(torch.tensor(batch), torch.rand(len(batch)))
                trained += batch
                if number == 0 and step == 1:
                    break
        return trained

    first, second = all_fine(in_threads(2, work))
    assert len({*first, *second}) == len(first) + len(second) == 30
