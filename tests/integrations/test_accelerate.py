"""With Accelerate: every score on its own sample, and a resumed run like a straight one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from examples import with_accelerate
from torch.utils.data import DataLoader

from orderdp import OrderDP, Pruner
from orderdp.errors import ConfigError, FeedbackError
from orderdp.integrations.accelerate import register
from orderdp.streaming import KeyFilter
from tests import accelerate_work as work
from tests import streaming_work as stream
from tests.ranks import in_processes
from tests.support import as_written

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")

KEPT = 45  # of 75
ONE_ROUND = 2 * work.BATCH_SIZE


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    """Accelerate keeps its settings in singletons."""
    work.forget()
    yield
    work.forget()


def assert_same_run(result: dict[str, Any], straight: dict[str, Any]) -> None:
    assert result["visited"] == straight["visited"]
    for weight, expected in zip(result["weights"], straight["weights"], strict=True):
        assert torch.equal(weight, expected)
    assert torch.equal(result["scores"], straight["scores"])
    for name, number in straight["report"].items():
        assert name == "exchanged_bytes" or result["report"][name] == number, name


def epochs(results: list[dict[str, Any]]) -> list[list[list[int]]]:
    """For each epoch and process, the samples it got."""
    return [
        [[i for at, batch in result["visited"] if at == epoch for i in batch] for result in results]
        for epoch in range(work.EPOCHS)
    ]


# -- one process -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", work.POLICIES)
def test_every_score_lands_on_its_own_sample_though_a_batch_is_fetched_ahead(policy: str) -> None:
    training = work.Training(policy)
    asked, given = [], training.loader.dataset
    fetch = given.__getitems__
    given.__getitems__ = lambda indices: asked.append(list(indices)) or fetch(indices)
    ahead = 0
    for number, (index, (x, y)) in enumerate(training.loader):
        ahead = max(ahead, len(asked) - number - 1)
        losses = training.criterion(training.model(x), y).detach()
        training.pruner.update(index, losses + index)  # what is written says where it belongs
    assert ahead == 1, "nothing was fetched ahead, so this proves nothing"
    scores = training.pruner.scores
    seen = scores.isfinite()
    assert seen.sum() == KEPT
    x, y = work.DATASET.tensors
    expected = training.criterion(training.model(x), y).detach() + torch.arange(work.N)
    assert torch.allclose(scores[seen], expected[seen])


@pytest.mark.parametrize("policy", work.POLICIES)
def test_a_prepared_loader_serves_what_the_plain_one_does(policy: str) -> None:
    result = work.straight(policy)
    pruner = Pruner(work.POLICIES[policy], work.N, seed=4)
    model = work.Training(policy).model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    visited = []
    for _ in range(work.EPOCHS):
        batches = iter(pruner.loader(work.DATASET, batch_size=work.BATCH_SIZE))
        following = next(batches)
        while following is not None:  # one ahead, too: it matters where every step chooses
            (index, (x, y)), following = following, next(batches, None)
            visited.append((pruner.epoch, index.tolist()))
            loss = pruner.update(index, torch.nn.functional.cross_entropy(model(x), y, reduction="none"))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert result["visited"] == visited
    assert result["report"]["kept"] == KEPT * work.EPOCHS
    for weight, expected in zip(result["weights"], model.parameters(), strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.parametrize("policy", work.POLICIES)
@pytest.mark.parametrize("stop_after", [4, 9, 17])
@pytest.mark.parametrize("way", ["goes on", "skips", "stateful"])
def test_save_state_and_load_state_anywhere(tmp_path: Path, policy: str, stop_after: int, way: str) -> None:
    more = {"stateful": True} if way == "stateful" else {}
    result = work.resumed(tmp_path, stop_after, way == "skips", policy, **more)
    assert_same_run(result, work.straight(policy))


def test_register_is_register_for_checkpointing_where_there_is_one_process(tmp_path: Path) -> None:
    accelerator, pruner = Accelerator(cpu=True), Pruner(OrderDP(0.4), work.N)
    accelerator.register_for_checkpointing(pruner)
    index = next(iter(pruner.loader(work.DATASET, batch_size=work.BATCH_SIZE)))[0]
    pruner.update(index, index.float())
    accelerator.save_state(str(tmp_path))

    work.forget()
    accelerator, other = Accelerator(cpu=True), Pruner(OrderDP(0.4), work.N)
    register(accelerator, other)
    accelerator.load_state(str(tmp_path))
    assert torch.equal(other.scores, pruner.scores)


def test_a_stream_is_filtered_and_its_filter_is_in_the_checkpoint(tmp_path: Path) -> None:
    def made() -> tuple[Accelerator, KeyFilter]:
        work.forget()
        options = DataLoaderConfiguration(dispatch_batches=False)
        accelerator = Accelerator(cpu=True, dataloader_config=options)
        keys = KeyFilter(stream.PRUNED, key=0, seed=5)
        register(accelerator, keys)
        return accelerator, keys

    def train(accelerator: Accelerator, keys: KeyFilter, epochs: int) -> list[list[str]]:
        loader = accelerator.prepare(DataLoader(keys.only(stream.Shards()), batch_size=4))
        visited = []
        for epoch in range(keys.epoch, epochs):
            for names, _ in keys.one_epoch(loader):
                keys.update(names, torch.tensor([stream.loss_of(name, epoch) for name in names]))
                visited.append(list(names))
        return visited

    straight = KeyFilter(stream.PRUNED, key=0, seed=5)
    expected = [batch for epoch in stream.train(straight, stream.Shards(), 4) for batch in epoch]
    accelerator, keys = made()
    first = train(accelerator, keys, 2)
    accelerator.save_state(str(tmp_path))
    accelerator, keys = made()
    accelerator.load_state(str(tmp_path))
    assert first + train(accelerator, keys, 4) == expected
    assert torch.equal(keys.scores_of(stream.NAMES), straight.scores_of(stream.NAMES))


def test_gradient_accumulation_takes_the_steps_that_were_planned() -> None:
    training = work.Training(gradient_accumulation_steps=2)
    planned = training.pruner.steps(work.EPOCHS, work.BATCH_SIZE, accumulate=2, split="batches")
    training.run()
    assert training.steps == planned == 5 * work.EPOCHS
    assert training.pruner.report()["kept"] == KEPT * work.EPOCHS


def test_losses_of_a_lower_precision_are_remembered_as_they_are() -> None:
    training = work.Training(mixed_precision="bf16")
    for index, (x, y) in training.loader:
        with training.accelerator.autocast():
            losses = (training.accelerator.unwrap_model(training.model)(x).bfloat16() - y[:, None]).square().mean(1)
        assert losses.dtype == torch.bfloat16
        loss = training.pruner.update(index, losses)
        training.accelerator.backward(loss)
        assert torch.equal(training.pruner.scores[index], losses.detach().float())
    training.run()
    assert training.pruner.report()["kept"] == KEPT * work.EPOCHS


class Curriculum(torch.utils.data.TensorDataset):
    """A data set that wants to know which epoch it is."""

    heard: tuple[int, ...] = ()

    def set_epoch(self, epoch: int) -> None:
        self.heard += (epoch,)


def test_a_data_set_hears_of_epochs() -> None:
    dataset = Curriculum(*work.DATASET.tensors)
    pruner = Pruner(OrderDP(0.4), work.N)
    loader = Accelerator(cpu=True).prepare(pruner.loader(dataset, batch_size=work.BATCH_SIZE))
    for _ in range(3):
        for index, _batch in loader:
            pruner.update(index, index.float())
    assert dataset.heard == (0, 1, 2)


# -- two processes -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_processes(2, tmp_path_factory.mktemp("accelerate"), work.two)


@pytest.mark.parametrize("name", ["drop_last", "every step", "even_batches", "split"])
def test_two_processes_get_different_samples_and_together_the_selection(ranks: list, name: str) -> None:
    results = [rank[name] for rank in ranks]
    assert results[0]["report"]["kept"] == sum(len(batch) for result in results for _, batch in result["visited"])
    for number, (mine, theirs) in enumerate(epochs(results)):
        both = mine + theirs
        if name == "drop_last":
            assert len(set(both)) == len(both) == KEPT // ONE_ROUND * ONE_ROUND
        else:  # Accelerate fills up the last round with samples of the first
            assert len(set(both)) == KEPT
            size = 6 if name == "split" else ONE_ROUND
            assert len(both) == -(-KEPT // size) * size
        assert len(mine) == len(theirs)
        if number == 0:
            pruner = Pruner(work.POLICIES[work.SHARED[name].get("policy", "epoch")], work.N, seed=4)
            batches = pruner.batch_sampler(6 if name == "split" else work.BATCH_SIZE)
            assert set(both) <= {index for batch in batches for index in batch}


@pytest.mark.parametrize("name", work.SHARED)
def test_both_processes_know_the_scores_of_all_samples(ranks: list, name: str) -> None:
    results = [rank[name] for rank in ranks]
    heard: dict[int, list[tuple[int, float]]] = {}
    assert torch.equal(results[0]["scores"], results[1]["scores"])
    assert all(torch.equal(*pair) for pair in zip(*(result["weights"] for result in results), strict=True))
    for result in results:
        latest = {index: epoch for epoch, batch in result["visited"] for index in batch}
        for index, loss in result["heard"].items():
            heard.setdefault(index, []).append((latest[index], loss))
    for index, score in enumerate(results[0]["scores"].tolist()):
        if index not in heard:
            assert score == float("inf")
            continue
        newest = max(epoch for epoch, _ in heard[index])
        assert score in [loss for epoch, loss in heard[index] if epoch == newest]


def test_the_steps_of_two_processes_are_those_that_were_planned(ranks: list) -> None:
    pruner = Pruner(OrderDP(0.4), work.N)
    for name, drop_last, accumulate in [("even_batches", False, 1), ("drop_last", True, 1), ("accumulate", False, 2)]:
        how = {"drop_last": drop_last, "accumulate": accumulate, "world_size": 2, "split": "batches"}
        planned = pruner.steps(work.EPOCHS, work.BATCH_SIZE, **how)
        assert [rank[name]["steps"] for rank in ranks] == [planned, planned]


@pytest.mark.parametrize("name", work.RESUMED)
def test_two_processes_go_on_as_if_nothing_had_happened(ranks: list, name: str) -> None:
    twin = work.RESUMED[name][0]
    for rank in ranks:
        assert_same_run(rank[name], rank[f"{name}, straight"])
        if twin == "drop_last":  # nothing is repeated: then a checkpoint changes nothing either
            assert_same_run(rank[name], rank[twin])


def test_the_example_trains_in_one_process_and_its_own_line_goes_on_in_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_accelerate.main(["--epochs", "2", "--checkpoint", str(tmp_path / "run")])
    assert "with 40.0% fewer samples" in capsys.readouterr().out
    run = as_written(with_accelerate, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "goes on at epoch 2 of 20 with 2 processes" in run.stdout
    assert float(run.stdout.split("test accuracy ")[1].split("%")[0]) > 90


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sharding twice", "ConfigError: .*shard=False"),
        ("dispatching", "ConfigError: .*dispatch_batches=False"),
        ("sharding twice, unregistered", "GroupError: .* of the 44 samples .* shard=False"),
        ("rewinding alone", "GroupError: .*rewind"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_both_processes(ranks: list, name: str, message: str) -> None:
    for rank in ranks:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(rank["errors"][name])


def test_a_batch_without_its_index_is_refused_with_the_first_step() -> None:
    training = work.Training()
    x, y = next(iter(training.accelerator.prepare(work.plain_loader())))
    losses = training.criterion(training.model(x), y)
    with pytest.raises(FeedbackError, match=r"whole numbers.* Pass the index that came with the batch"):
        training.pruner.update(x[:, 0], losses)


@pytest.mark.parametrize(
    ("accelerator", "pruner", "message"),
    [
        (None, Pruner(OrderDP(0.4), 9), r"accelerator must be .* pip install '\.\[accelerate\]'"),
        (Accelerator, "pruner", "pruner must be an orderdp.Pruner or a KeyFilter, got str"),
    ],
)
def test_what_cannot_be_registered_is_named(accelerator: Any, pruner: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        register(accelerator(cpu=True) if accelerator else "accelerator", pruner)
