"""With Lightning: what the pruner has chosen is trained on, checkpoints hold it, and a wrong Trainer is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import lightning_cli, with_lightning
from lightning.pytorch import LightningDataModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, RandomSampler

from orderdp import OrderDP, Pruner
from orderdp.errors import ConfigError, FeedbackError
from orderdp.integrations.lightning import DataPruning
from orderdp.policies import Linear, Scheduled
from orderdp.streaming import GrowingPruner, KeyFilter
from tests import lightning_work as work
from tests import streaming_work as stream
from tests.ranks import in_processes
from tests.support import Undecided, as_written

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")
KEPT = 45  # of 75
GROWING = Scheduled(OrderDP(0.4), Linear(0.6, 0.2))  # 30, 45 and 60 samples


def assert_same_run(result: dict[str, Any], straight: dict[str, Any]) -> None:
    assert result["visited"] == straight["visited"]
    for weight, expected in zip(result["weights"], straight["weights"], strict=True):
        assert torch.equal(weight, expected)
    assert torch.equal(result["scores"], straight["scores"])
    assert result["report"] == straight["report"]
    assert result["logged"] == straight["logged"]


def sizes(result: dict[str, Any]) -> list[int]:
    """Different samples of each epoch."""
    return [
        len({i for at, _, batch in result["visited"] if at == epoch for i in batch}) for epoch in range(work.EPOCHS)
    ]


class Data(LightningDataModule):
    """Data as people write them: what there is to train on is known in `setup` only."""

    def __init__(self) -> None:
        super().__init__()
        self.setups: list[str] = []

    def setup(self, stage: str) -> None:
        self.setups.append(stage)
        if stage == "fit":
            self.pruner = Pruner(OrderDP(0.4), work.DATASET, seed=4, epochs=work.EPOCHS)

    def train_dataloader(self) -> Any:
        return self.pruner.loader(work.DATASET, batch_size=work.BATCH_SIZE)

    def test_dataloader(self) -> Any:
        return DataLoader(work.DATASET, batch_size=25)


class OfTheData(work.Module):
    """A module that asks the data for the pruner."""

    def __init__(self) -> None:
        super().__init__(None)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.pruner = self.trainer.datamodule.pruner
        return super().training_step(batch, batch_idx)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.validation_step(batch, batch_idx)


def with_data(*callbacks: Any, **fitting: Any) -> tuple[OfTheData, Trainer, Data]:
    _, trainer, _ = work.make(callbacks=list(callbacks))
    trainer.callbacks[0] = DataPruning()
    module, data = OfTheData(), Data()
    work.fit(module, trainer, None, datamodule=data, **fitting)
    return module, trainer, data


# -- one device --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", work.POLICIES)
def test_a_trainer_does_what_a_loop_does(policy: str) -> None:
    result = work.straight(policy)
    module, _, loader = work.make(policy)
    optimizer = module.configure_optimizers()
    visited = []
    for epoch in range(work.EPOCHS):
        for number, (index, (x, y)) in enumerate(loader):
            visited.append((epoch, number, index.tolist()))
            losses = torch.nn.functional.cross_entropy(module.model(x), y, reduction="none")
            optimizer.zero_grad()
            module.pruner.update(index, losses).backward()
            optimizer.step()
    assert result["visited"] == visited
    for weight, expected in zip(result["weights"], module.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    assert torch.equal(result["scores"], module.pruner.scores)
    assert result["report"]["kept"] == KEPT * work.EPOCHS


def test_every_score_is_the_last_loss_of_its_own_sample() -> None:
    result = work.straight(num_workers=2)
    expected = torch.full((work.N,), float("inf"))
    for index, loss in result["heard"].items():
        expected[index] = loss
    assert torch.equal(result["scores"], expected)


def test_what_is_saved_is_logged() -> None:
    result = work.straight()
    report = result["report"]
    assert result["logged"] == pytest.approx(
        {"orderdp/kept": 135, "orderdp/saved": 0.4, "orderdp/coverage": report["coverage"]}
    )
    module, trainer, loader = work.make()
    trainer.callbacks[0] = DataPruning(module.pruner, log=False)
    work.fit(module, trainer, loader)
    assert trainer.callback_metrics == {}


def test_a_data_module_makes_the_pruner_in_its_setup_which_only_the_trainer_calls() -> None:
    module, trainer, data = with_data()
    assert data.setups == ["fit"]
    assert trainer.callbacks[0].pruner is data.pruner
    assert_same_run(work.result(module, trainer), work.straight())
    trainer.test(module, datamodule=data, verbose=False)
    assert data.setups == ["fit", "test"]


def test_the_pruner_of_a_data_module_goes_on_in_mid_epoch(tmp_path: Path) -> None:
    saving = work.SaveAt(tmp_path / "run.ckpt", "on_train_batch_end", 13, stop=True)
    with pytest.raises(work.StoppedError):
        with_data(saving)
    module, trainer, _ = with_data(ckpt_path=tmp_path / "run.ckpt", weights_only=True)
    straight = work.straight()
    rest = work.result(module, trainer)
    assert_same_run({**rest, "visited": straight["visited"][:13] + rest["visited"]}, straight)


def test_without_a_data_module_the_pruner_of_the_module_is_found_or_the_error_says_where_it_was_looked_for() -> None:
    module, trainer, loader = work.make()
    trainer.callbacks[0] = DataPruning()
    work.fit(module, trainer, loader)
    assert_same_run(work.result(module, trainer), work.straight())
    _, trainer, _ = work.make()
    trainer.callbacks[0] = DataPruning()
    with pytest.raises(ConfigError, match=r"no pruner: OfTheData must.*in its setup.*give DataPruning\(pruner\)"):
        work.fit(OfTheData(), trainer, loader)
    with pytest.raises(ConfigError, match=r"DataPruning\(\) has no pruner before fit"):
        _ = DataPruning().pruner


RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "every step": {"policy": "batch"},
    "workers": {"num_workers": 2},
    "limited": {"limit_train_batches": 4},
    "accumulated": {"accumulate_grad_batches": 2},
    "validated": {"validate": True},
    "validated twice an epoch": {"validate": True, "val_check_interval": 4},
    "reloaded": {"policy": GROWING, "reload_dataloaders_every_n_epochs": 1},
    "reloaded and validated": {"policy": GROWING, "reload_dataloaders_every_n_epochs": 1, "validate": True},
    "shrinking": {"policy": Scheduled(OrderDP(0.4), Linear(0.2, 0.6)), "reload_dataloaders_every_n_epochs": 1},
}


@pytest.mark.parametrize(
    ("run", "hook", "call"),
    [
        ("plain", "on_train_batch_end", 4),
        ("plain", "on_train_batch_end", 9),
        ("plain", "on_train_epoch_end", 2),
        ("every step", "on_train_batch_end", 13),
        ("workers", "on_train_batch_end", 11),
        ("limited", "on_train_batch_end", 2),
        ("limited", "on_train_batch_end", 4),
        ("limited", "on_train_epoch_end", 1),
        ("accumulated", "on_train_batch_end", 6),
        ("accumulated", "on_train_epoch_end", 1),
        ("validated", "on_validation_end", 1),
        ("validated twice an epoch", "on_validation_end", 3),
        ("reloaded", "on_train_batch_end", 8),
        ("reloaded", "on_train_batch_end", 15),
        ("reloaded", "on_train_epoch_end", 1),
        ("reloaded and validated", "on_validation_end", 2),
        ("reloaded and validated", "on_train_batch_end", 6),
        ("shrinking", "on_train_batch_end", 12),
    ],
)
def test_a_checkpoint_of_the_trainer_goes_on_anywhere(tmp_path: Path, run: str, hook: str, call: int) -> None:
    result = work.resumed(tmp_path / "run.ckpt", hook, call, **RUNS[run])
    assert_same_run(result, work.straight(**RUNS[run]))


def test_a_training_stopped_by_max_steps_goes_on_in_mid_epoch(tmp_path: Path) -> None:
    module, trainer, loader = work.make(max_steps=13, max_epochs=-1)
    work.fit(module, trainer, loader)
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    second, trainer, loader = work.make(max_steps=27, max_epochs=-1)
    work.fit(second, trainer, loader, ckpt_path=tmp_path / "run.ckpt", weights_only=True)
    straight = work.straight(max_steps=27, max_epochs=-1)
    batches = [batch for *_, batch in module.visited + second.visited]
    assert batches == [batch for *_, batch in straight["visited"]]
    assert all(torch.equal(*pair) for pair in zip(second.model.parameters(), straight["weights"], strict=True))


def test_an_epoch_left_by_should_stop_is_over_though_steps_are_limited_too(tmp_path: Path) -> None:
    class StopAt(Callback):
        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.should_stop = trainer.global_step == 11

    module, trainer, loader = work.make(max_steps=1000)
    trainer.callbacks.append(StopAt())
    work.fit(module, trainer, loader)
    assert module.steps == 11  # two of the nine of the second epoch
    assert module.pruner.epoch == 2
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    second, trainer, loader = work.make(max_steps=1000)
    work.fit(second, trainer, loader, ckpt_path=tmp_path / "run.ckpt", weights_only=True)
    assert [epoch for epoch, *_ in second.visited] == [2] * 7  # Lightning goes on counting batches where it was stopped
    assert second.pruner.epoch == 3


def test_two_pruners_in_one_trainer_need_names_and_then_resume(tmp_path: Path) -> None:
    class Two(work.Module):
        def __init__(self, first: Pruner, second: Pruner) -> None:
            super().__init__(first)
            self.other = second

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            index, (x, y) = batch["second"]
            losses = torch.nn.functional.cross_entropy(self.model(x), y, reduction="none")
            return super().training_step(batch["first"], batch_idx) + self.other.update(index, losses)

    def made(name: str) -> tuple[Two, Trainer, dict[str, Any]]:
        other = Pruner(OrderDP(0.5), work.DATASET, seed=1)
        module, trainer, loader = work.make(callbacks=[DataPruning(other, name=name)])
        return Two(module.pruner, other), trainer, {"first": loader, "second": other.loader(work.DATASET, batch_size=5)}

    with pytest.raises(RuntimeError, match="more than one stateful callback of type `DataPruning`"):
        made("")
    module, trainer, loaders = made("second")
    work.fit(module, trainer, loaders)
    logged = trainer.callback_metrics
    assert logged["orderdp/kept"] == module.pruner.report()["kept"] == work.EPOCHS * KEPT
    assert logged["orderdp/second/saved"] == pytest.approx(module.other.report()["saved"])
    trainer.save_checkpoint(tmp_path / "run.ckpt")
    again, trainer, loaders = made("second")
    work.fit(again, trainer, loaders, ckpt_path=tmp_path / "run.ckpt", weights_only=True)
    assert torch.equal(again.pruner.scores, module.pruner.scores)
    assert torch.equal(again.other.scores, module.other.scores)


def test_a_filtered_stream_is_an_iterable_with_an_epoch_a_turn() -> None:
    class Epochs:
        def __iter__(self) -> Any:
            return keys.one_epoch(DataLoader(keys.only(stream.Shards()), batch_size=4))

    class Streamed(work.Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            names, _ = batch
            losses = torch.tensor([stream.loss_of(name, self.current_epoch) for name in names])
            return keys.update(names, losses + 0 * self.model.bias.sum())

    straight, keys = (KeyFilter(stream.PRUNED, key=0, seed=5) for _ in range(2))
    stream.train(straight, stream.Shards(), work.EPOCHS)
    module, trainer, _ = work.make()
    del trainer.callbacks[0]
    work.fit(Streamed(module.pruner), trainer, Epochs())
    assert torch.equal(keys.scores_of(stream.NAMES), straight.scores_of(stream.NAMES))
    assert keys.report() == straight.report()


def test_a_limit_leaves_epochs_early_and_begins_the_next() -> None:
    result = work.straight(limit_train_batches=4)
    assert [(epoch, number) for epoch, number, _ in result["visited"]] == [(e, b) for e in range(3) for b in range(4)]
    assert sizes(result) == [20, 20, 20]
    assert result["report"]["epoch"] == 3
    assert result["report"]["kept"] == 60
    assert result["report"]["saved"] == pytest.approx(1 - 20 / work.N)


@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_the_steps_are_those_that_were_planned(accumulate: int) -> None:
    result = work.straight(accumulate_grad_batches=accumulate)
    pruner = Pruner(OrderDP(0.4), work.N)
    assert result["steps"] == pruner.steps(work.EPOCHS, work.BATCH_SIZE, accumulate=accumulate)


def test_reloading_trains_epochs_of_any_length() -> None:
    assert sizes(work.straight(GROWING, reload_dataloaders_every_n_epochs=1)) == [30, 45, 60]
    undecided = work.straight(Undecided(), reload_dataloaders_every_n_epochs=1)
    assert sizes(undecided)[0] == work.N
    assert undecided["report"]["kept"] == sum(sizes(undecided))


def test_without_reloading_lightning_trains_all_epochs_at_the_length_of_the_first() -> None:
    """Why the callback asks for it. If this fails, Lightning has changed and it need not ask any more."""
    module, trainer, loader = work.make(GROWING)
    trainer.callbacks[:] = []
    work.fit(module, trainer, loader)
    assert sizes({"visited": module.visited}) == [30, 30, 30]


def test_testing_a_checkpoint_leaves_the_pruner_alone(tmp_path: Path) -> None:
    module, trainer, loader = work.make(callbacks=[work.SaveAt(tmp_path / "run.ckpt", "on_train_epoch_end", 1, False)])
    work.fit(module, trainer, loader)
    before = module.pruner.report()
    data = DataLoader(work.DATASET, batch_size=75, num_workers=2, persistent_workers=True)
    trainer.validate(module, data, ckpt_path=tmp_path / "run.ckpt", weights_only=True, verbose=False)
    assert module.pruner.report() == before


# -- two devices -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return in_processes(2, tmp_path_factory.mktemp("lightning"), work.two)


@pytest.mark.parametrize("name", work.SHARED)
def test_two_devices_get_different_samples_and_together_the_selection(ranks: list, name: str) -> None:
    results = [rank[name] for rank in ranks]
    each = 10 if name == "limited" else KEPT // 2
    for epoch in range(work.EPOCHS):
        mine, theirs = ([i for at, _, batch in run["visited"] if at == epoch for i in batch] for run in results)
        assert len(mine) == len(theirs) == each
        assert len({*mine, *theirs}) == 2 * each
        if epoch == 0:
            pruner = Pruner(work.POLICIES[work.SHARED[name].get("policy", "epoch")], work.N, seed=4)
            selection = [i for batch in pruner.batch_sampler(2 * work.BATCH_SIZE) for i in batch]
            assert {*mine, *theirs} == set(selection[: 2 * each])
    assert results[0]["report"]["kept"] == 2 * each * work.EPOCHS


@pytest.mark.parametrize("name", work.SHARED)
def test_both_devices_know_the_scores_of_all_samples(ranks: list, name: str) -> None:
    results = [rank[name] for rank in ranks]
    expected = [float("inf")] * work.N
    for epoch in range(work.EPOCHS):
        for run in results:
            for index in {i for at, _, batch in run["visited"] if at == epoch for i in batch}:
                newest = max(at for at, _, batch in run["visited"] if index in batch)
                if newest == epoch:
                    expected[index] = run["heard"][index]
    for run in results:
        assert run["scores"].tolist() == expected
        assert run["logged"]["orderdp/kept"] == run["report"]["kept"]
    assert all(torch.equal(*pair) for pair in zip(*(run["weights"] for run in results), strict=True))


def test_the_steps_of_two_devices_are_those_that_were_planned(ranks: list) -> None:
    pruner = Pruner(OrderDP(0.4), work.N)
    for name, accumulate in [("plain", 1), ("accumulated", 3)]:
        planned = pruner.steps(work.EPOCHS, work.BATCH_SIZE, world_size=2, accumulate=accumulate)
        assert [rank[name]["steps"] for rank in ranks] == [planned, planned]


@pytest.mark.parametrize("name", work.RESUMED)
def test_two_devices_go_on_as_if_nothing_had_happened(ranks: list, name: str) -> None:
    for rank in ranks:
        result, straight = rank[f"{name}, resumed"], rank[work.RESUMED[name][0]]
        for report in (result["report"], straight["report"]):
            report.pop("exchanged_bytes", None)
        assert_same_run(result, straight)


def test_the_example_trains_on_one_device_and_its_own_line_goes_on_on_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_lightning.main(["--epochs", "2", "--checkpoint", str(tmp_path / "run")])
    assert "with 40.0% fewer samples, 1616 in all" in capsys.readouterr().out
    run = as_written(with_lightning, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "Starting with 2 processes" in run.stderr
    assert "with 40.0% fewer samples, 16160 in all" in run.stdout
    assert float(run.stdout.split("test accuracy ")[1].split("%")[0]) > 90


def test_the_words_of_a_policy_in_the_yaml_of_lightnings_command_line(tmp_path: Path) -> None:
    run = as_written(lightning_cli, tmp_path)
    assert run.returncode == 0, run.stderr
    assert "OrderDP(prune_ratio=0.3): 30.0% fewer samples" in run.stdout


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Lightning's sampler", r"ConfigError: the Trainer needs Trainer\(use_distributed_sampler=False\)"),
        ("nothing is sharded", "ConfigError: .* Leave shard=False out"),
        ("sharded again", "GroupError: .* losses for .* samples of epoch 0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused_by_both_processes(ranks: list, name: str, message: str) -> None:
    for rank in ranks:
        with pytest.raises(AssertionError, match=message):
            raise AssertionError(rank["errors"][name])


@pytest.mark.parametrize("policy", [GROWING, Undecided()])
@pytest.mark.parametrize("every", [0, 2])
def test_epochs_that_are_not_of_one_length_need_a_trainer_that_reloads(policy: Any, every: int) -> None:
    module, trainer, loader = work.make(policy, reload_dataloaders_every_n_epochs=every)
    with pytest.raises(ConfigError, match=r"needs Trainer\(reload_dataloaders_every_n_epochs=1\): epochs of "):
        work.fit(module, trainer, loader)
    assert module.visited == []


def test_data_that_may_grow_need_a_trainer_that_reloads() -> None:
    pruner = GrowingPruner(OrderDP(0.4), work.DATASET)
    _, trainer, _ = work.make()
    with pytest.raises(ConfigError, match=r"needs Trainer\(reload_dataloaders_every_n_epochs=1\): epochs of "):
        DataPruning(pruner).setup(trainer, work.Module(pruner), "fit")


def test_all_arguments_that_are_needed_are_named_at_once() -> None:
    module, trainer, loader = work.make(GROWING, overfit_batches=2)
    with pytest.raises(ConfigError, match=r"Trainer\(reload_dataloaders_every_n_epochs=1, overfit_batches=0\.0\)"):
        work.fit(module, trainer, loader)


def test_a_loader_that_is_not_the_pruners_is_refused() -> None:
    module, trainer, _ = work.make()
    loader = DataLoader(work.DATASET, sampler=RandomSampler(work.DATASET), batch_size=5)
    with pytest.raises(ConfigError, match=r"they come from RandomSampler.* pruner\.loader"):
        work.fit(module, trainer, loader)
    assert module.visited == []


def test_loaders_of_ones_own_and_beside_others_are_accepted() -> None:
    class TwoLoaders(work.Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch["pruned"], batch_idx)

    module, trainer, _ = work.make()
    pruned = DataLoader(work.orderdp.Indexed(work.DATASET), sampler=module.pruner.sampler, batch_size=work.BATCH_SIZE)
    two = TwoLoaders(module.pruner)
    work.fit(two, trainer, {"pruned": pruned, "other": DataLoader(work.DATASET, batch_size=25)})
    assert sizes({"visited": two.visited}) == [KEPT] * work.EPOCHS


def test_a_module_that_does_not_hand_back_its_losses_is_told_after_one_step() -> None:
    class Forgetful(work.Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            _, (x, y) = batch
            return torch.nn.functional.cross_entropy(self.model(x), y)

    module, trainer, loader = work.make()
    with pytest.raises(FeedbackError, match=r"received no losses .* pruner\.update\(index, losses\)"):
        work.fit(Forgetful(module.pruner), trainer, loader)


def test_a_batch_without_its_index_is_refused_with_the_first_step() -> None:
    class Unindexed(work.Module):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step((batch[1][0][:, 0], batch[1]), batch_idx)

    module, trainer, loader = work.make()
    with pytest.raises(FeedbackError, match=r"whole numbers.* Pass the index that came with the batch"):
        work.fit(Unindexed(module.pruner), trainer, loader)


def test_what_is_no_pruner_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pruner must be an orderdp\.Pruner, got OrderDP"):
        DataPruning(OrderDP(0.4))


def test_without_lightning_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "orderdp.integrations.lightning")
    for name in [name for name in sys.modules if name == "lightning" or name.startswith("lightning.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(ConfigError, match=r"needs lightning.*, which is not installed: pip install '\.\[lightning\]'"):
        __import__("orderdp.integrations.lightning")


def test_a_trainer_without_an_end_is_looked_at_for_long() -> None:
    module, trainer, _ = work.make(max_epochs=-1)
    trainer.callbacks[0].setup(trainer, module, "fit")
    assert isinstance(trainer, Trainer)
