"""Hugging Face's Trainer trains on what the pruner selects, and tells it every sample's loss."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from examples import huggingface as example
from examples import with_trl
from torch.utils.data import IterableDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorWithFlattening,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    set_seed,
)

import orderdp
from datasets import Dataset
from orderdp import OrderDP, Pruner, policies
from orderdp.errors import ConfigError, DatasetError, FeedbackError, StateError
from orderdp.integrations import huggingface
from orderdp.integrations.huggingface import (
    INDEX,
    STATE_FILE,
    IndexKeeper,
    OwnLoss,
    PruningMixin,
    PruningTrainer,
    check_trainer,
    label_losses,
    next_token_losses,
    output_losses,
)
from orderdp.policies.schedules import Scheduled, WarmUp
from orderdp.samplers import BatchIterator
from tests import huggingface_work as work
from tests.huggingface_work import BATCH_SIZE, EPOCHS, KEPT, N, make
from tests.support import Undecided, Weighted

# A loop that takes its samples from a pruner never gives back losses while no epoch is open.
pytestmark = pytest.mark.filterwarnings("error::orderdp.errors.NoOpenEpochWarning")

ROOT = Path(__file__).parents[2]


def by_epoch(visited: list[tuple[int, list[int]]]) -> dict[int, list[int]]:
    epochs: dict[int, list[int]] = {}
    for epoch, batch in visited:
        epochs.setdefault(epoch, []).extend(batch)
    return epochs


def assert_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


# -- the loss of each sample ---------------------------------------------------------------------------------------


def batch_of(task: str, size: int = 6) -> dict[str, torch.Tensor]:
    batch = work.collator(task)(work.dataset(task)[:size])
    assert (batch["attention_mask"] == 0).any(), "nothing is padded"
    return dict(batch)


def test_losses_of_a_causal_model_are_means_over_the_tokens_of_each_sequence() -> None:
    model, batch = work.model("words").eval(), batch_of("words")
    with torch.no_grad():
        outputs = model(batch["input_ids"], batch["attention_mask"])
    expected = []
    for ids, mask, logits in zip(batch["input_ids"], batch["attention_mask"], outputs.logits, strict=True):
        length = int(mask.sum())
        tokens = [-logits[t].log_softmax(0)[ids[t + 1]].item() for t in range(length - 1)]
        expected.append(sum(tokens) / len(tokens))
    losses = output_losses(model, outputs, batch)
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    # The model's own number is the mean over tokens of the same.
    counts = batch["attention_mask"].sum(1) - 1
    own = model(**batch).loss
    assert ((losses * counts).sum() / counts.sum()).item() == pytest.approx(own.item(), rel=1e-5)
    ready = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
    assert torch.allclose(output_losses(model, outputs, {"shift_labels": ready, "labels": ready}), losses)


@pytest.mark.parametrize("kind", [BertForTokenClassification, BertForMaskedLM])
def test_losses_of_labeled_tokens_are_not_shifted(kind: Any) -> None:
    config = BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, num_labels=20
    )
    model = kind(config).eval()
    ids = torch.arange(12).view(2, 6)
    labels = torch.tensor([[3, -100, 5, -100, 7, 1], [-100, -100, -100, 2, -100, -100]])
    with torch.no_grad():
        outputs = model(ids, labels=labels)
    losses = output_losses(model, outputs, {"labels": labels})
    expected = [
        torch.stack([-outputs.logits[i, t].log_softmax(0)[label] for t, label in enumerate(row) if label >= 0]).mean()
        for i, row in enumerate(labels)
    ]
    assert losses.tolist() == pytest.approx([value.item() for value in expected], rel=1e-5)
    assert (losses * torch.tensor([4, 1])).sum().item() / 5 == pytest.approx(outputs.loss.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("config", "labels"),
    [
        ({"num_labels": 4}, torch.tensor([0, 3, 1, 1, 2, 0])),
        ({"num_labels": 1}, torch.tensor([0.5, 3.0, -1.0, 1.0, 2.0, 0.0])),
        ({"num_labels": 3, "problem_type": "regression"}, torch.arange(18.0).view(6, 3)),
        ({"num_labels": 3}, (torch.arange(18) % 2).float().view(6, 3)),
    ],
    ids=["classes", "regression", "regression of several", "several classes"],
)
def test_losses_of_a_classifier_average_to_its_own_and_each_is_that_of_its_sample_alone(
    config: dict[str, Any], labels: torch.Tensor
) -> None:
    model, batch = work.model(**config).eval(), {**batch_of("classify"), "labels": labels}
    with torch.no_grad():
        outputs = model(**batch)
        losses = output_losses(model, model(batch["input_ids"], batch["attention_mask"]), batch)
        alone = [model(**{name: value[i : i + 1] for name, value in batch.items()}).loss.item() for i in range(6)]
    assert losses.mean().item() == pytest.approx(outputs.loss.item(), rel=1e-5)
    assert losses.tolist() == pytest.approx(alone, rel=1e-4)


def test_smoothed_labels_are_a_mixture_of_the_label_and_of_all_classes() -> None:
    logits, labels = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 1, 0])
    logs = logits.log_softmax(1)
    expected = -0.9 * logs[range(5), labels] - 0.1 * logs.mean(1)
    assert torch.allclose(label_losses(logits, labels, label_smoothing=0.1), expected)


def test_a_sequence_without_labels_has_loss_zero() -> None:
    assert label_losses(torch.randn(1, 4, 3), torch.full((1, 4), -100), shift=True).tolist() == [0.0]


# -- which samples, and whose losses -------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 4])
def test_every_epoch_has_exactly_the_samples_and_steps_that_were_announced(tmp_path: Path, accumulate: int) -> None:
    trainer = make(tmp_path, gradient_accumulation_steps=accumulate)
    output = trainer.train()
    pruner = trainer.pruner
    assert trainer.state.max_steps == output.global_step
    assert output.global_step == pruner.steps(EPOCHS, BATCH_SIZE, accumulate=accumulate, split="batches")
    epochs = by_epoch(trainer.visited)
    assert [len(epochs[e]) for e in range(EPOCHS)] == [len(set(epochs[e])) for e in range(EPOCHS)] == [KEPT] * EPOCHS
    report = pruner.report()
    assert report["kept"] == EPOCHS * KEPT == int(pruner.usage.sum())
    assert pruner.epoch == EPOCHS
    assert trainer.num_examples(trainer.get_train_dataloader()) == KEPT, "the Trainer's speeds count what it trains on"


def test_every_score_is_on_its_own_sample_though_batches_are_fetched_ahead(tmp_path: Path) -> None:
    train_set = [{**item, "labels": index} for index, item in enumerate(work.dataset())]

    def own_number(outputs: Any, inputs: Any) -> torch.Tensor:
        return inputs["labels"].float() + 0 * outputs.logits.sum(1)

    given = {"train_dataset": train_set, "sample_losses": own_number}
    trainer = make(tmp_path, given=given, gradient_accumulation_steps=3, dataloader_num_workers=1)
    trainer.train()
    scores = trainer.pruner.scores
    seen = scores.isfinite()
    assert seen.sum() >= KEPT
    assert torch.equal(scores[seen], torch.arange(N)[seen].float())
    # And so the batches are those of a loop of one's own with these losses.
    loop = Pruner(OrderDP(0.4), N, seed=5)
    expected = []
    for _ in range(EPOCHS):
        for batch in loop.batch_sampler(BATCH_SIZE):
            expected.append((loop.epoch, batch))
            loop.update(batch, torch.tensor(batch).float())
    assert trainer.visited == expected


@pytest.mark.parametrize("task", ["classify", "words"])
def test_scores_are_the_losses_that_are_computed_again(tmp_path: Path, task: str) -> None:
    trainer = make(tmp_path, task, dropout=0.0, learning_rate=0.0)
    trainer.train()
    model = trainer.model.eval()
    for index, score in enumerate(trainer.pruner.scores.tolist()):
        if score == float("inf"):
            continue
        alone = trainer.data_collator([trainer.train_dataset[index]])
        with torch.no_grad():
            assert score == pytest.approx(model(**alone).loss.item(), rel=1e-4), index


class Gradients(TrainerCallback):
    def __init__(self) -> None:
        self.steps: list[torch.Tensor] = []

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.steps.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone())


def gradients(folder: Path, task: str, batch_size: int, accumulate: int, divide: bool = True) -> list[torch.Tensor]:
    trainer = make(
        folder,
        task,
        dropout=0.0,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.0,
        optim="sgd",
    )
    if not divide:
        trainer.model_accepts_loss_kwargs = True  # as the Trainer finds it
    noted = Gradients()
    trainer.add_callback(noted)
    trainer.train()
    return noted.steps


@pytest.mark.parametrize("task", ["classify", "words"])
def test_gradients_with_and_without_accumulation_agree(tmp_path: Path, task: str) -> None:
    """27 samples an epoch: steps of 8, 8, 8 and 3, the last one in batches of 2 and 1."""
    at_once, in_parts = gradients(tmp_path, task, 8, 1), gradients(tmp_path, task, 2, 4)
    assert len(at_once) == len(in_parts) == 4 * EPOCHS
    for one, other in zip(at_once, in_parts, strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-6)
    undivided = gradients(tmp_path, task, 2, 4, divide=False)
    assert torch.allclose(undivided[0], 4 * at_once[0], rtol=1e-3, atol=1e-5), "the check could not fail"


def test_a_weighted_policy_weights_the_losses(tmp_path: Path) -> None:
    def ones(outputs: Any, inputs: Any) -> torch.Tensor:
        return 1 + 0 * outputs.logits.sum(1)

    trainer = make(tmp_path, policy=Weighted(), given={"sample_losses": ones}, num_train_epochs=1, logging_steps=1)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses == pytest.approx([sum(i + 1 for i in batch) / len(batch) for _, batch in trainer.visited])


def test_a_policy_is_told_what_it_wants_to_know(tmp_path: Path) -> None:
    policy = policies.DynamicUncertainty(prune_ratio=0.4, window=2, warm_up=0)
    trainer = make(tmp_path, policy=policy)
    assert trainer.pruner.update_arguments == ("probability",)
    trainer.train()
    assert trainer.pruner.report()["kept"] == EPOCHS * KEPT


def test_every_batch_chooses_at_every_step(tmp_path: Path) -> None:
    trainer = make(tmp_path, policy=OrderDP(0.4, every="batch"))
    trainer.train()
    assert [len(set(batch)) for batch in by_epoch(trainer.visited).values()] == [KEPT] * EPOCHS


def test_the_index_survives_columns_that_are_removed_and_collators_that_know_nothing_of_it(tmp_path: Path) -> None:
    rows = [{**item, "text": "not for the model"} for item in work.dataset()]
    tables = {"table": Dataset.from_list(rows), "list": rows, "indexed": orderdp.Indexed(rows)}
    for name, train_set in tables.items():
        trainer = make(tmp_path, given={"train_dataset": train_set}, num_train_epochs=1)
        assert trainer.train().global_step == 7, name
        assert trainer.train_dataset is train_set
        assert trainer.pruner.report()["kept"] == KEPT

    def chosen_columns(items: list[dict[str, Any]]) -> dict[str, Any]:
        padded = work.collator()([{k: v for k, v in item.items() if k != "text"} for item in items])
        return {name: padded[name] for name in ("input_ids", "attention_mask", "labels")}

    given = {"train_dataset": rows, "data_collator": chosen_columns}
    trainer = make(tmp_path, given=given, remove_unused_columns=False, num_train_epochs=1)
    trainer.train()
    assert trainer.pruner.report()["kept"] == KEPT


class Curriculum(list[Any]):
    """A data set that wants to know which epoch it is."""

    def __init__(self, items: Any) -> None:
        super().__init__(items)
        self.heard: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.heard.append(epoch)


def test_a_data_set_hears_of_epochs_as_from_the_plain_trainer(tmp_path: Path) -> None:
    pruned, plain = Curriculum(work.dataset()), Curriculum(work.dataset())
    make(tmp_path, given={"train_dataset": pruned}).train()
    Trainer(work.model(), work.arguments(tmp_path), train_dataset=plain, data_collator=work.collator()).train()
    assert pruned.heard == plain.heard == [0, 0, 1, 1, 2, 2]


# -- callbacks, evaluation, logs -----------------------------------------------------------------------------------


class Listener(TrainerCallback):
    """Leaves the second epoch early, and hears the logs."""

    def __init__(self) -> None:
        self.logs: list[dict[str, float]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_epoch_stop = state.global_step == 9

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.logs.append(dict(logs))


def test_callbacks_hear_what_is_saved_and_may_leave_an_epoch(tmp_path: Path) -> None:
    trainer, listener = make(tmp_path, logging_steps=1), Listener()
    trainer.add_callback(listener)
    trainer.train()
    epochs = by_epoch(trainer.visited)
    assert [len(epochs[epoch]) for epoch in range(EPOCHS)] == [KEPT, 2 * BATCH_SIZE, KEPT]
    about_training = [logs for logs in listener.logs if "loss" in logs or "train_runtime" in logs]
    assert [logs["orderdp_kept"] for logs in about_training][:3] == [4, 8, 12]
    assert about_training[-1]["orderdp_saved"] == pytest.approx(trainer.pruner.report()["saved"])


def test_evaluation_uses_the_trainers_own_loss_and_tells_the_pruner_nothing(tmp_path: Path) -> None:
    test_set = work.dataset("words")[:8]
    given = {"eval_dataset": test_set, "callbacks": [EarlyStoppingCallback(early_stopping_patience=1)]}
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer = make(tmp_path, "words", given=given, per_device_eval_batch_size=8, learning_rate=0.0, **options)
    trainer.train()
    assert trainer.state.global_step == 14, "no progress for one epoch stops the training"
    assert trainer.pruner.report()["kept"] == 2 * KEPT
    plain = Trainer(trainer.model, trainer.args, data_collator=trainer.data_collator, eval_dataset=test_set)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(plain.evaluate()["eval_loss"])


# -- checkpoints ---------------------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped by length": {"train_sampling_strategy": "group_by_length"},
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "whole batches": {"dataloader_drop_last": True},
    "every batch": {"policy": OrderDP(0.4, every="batch")},
    "words": {"task": "words"},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_resumed_training_ends_with_the_weights_of_the_straight_one(tmp_path: Path, variant: str) -> None:
    options = VARIANTS[variant]
    straight = make(tmp_path / "straight", save_strategy="steps", save_steps=1, **options)
    straight.train()
    steps = straight.state.max_steps // EPOCHS
    for stopped_at in (steps + 2, 2 * steps):
        resumed = make(tmp_path / "resumed", seed=1, **options)
        resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / f"checkpoint-{stopped_at}"))
        assert resumed.state.global_step == straight.state.global_step
        assert resumed.visited == straight.visited[-len(resumed.visited) :]
        assert len(resumed.visited) < len(straight.visited)
        assert_same_weights(work.weights(resumed), work.weights(straight))
        assert torch.equal(resumed.pruner.scores, straight.pruner.scores)
        assert resumed.pruner.report() == straight.pruner.report()


def test_skipping_twice_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer skips; if the pruner did so too, samples would be left out."""
    straight = make(tmp_path / "straight", save_strategy="steps", save_steps=9)
    straight.train()
    monkeypatch.setattr(BatchIterator, "load_state_dict", lambda self, state: None)
    resumed = make(tmp_path / "resumed", seed=1)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / "checkpoint-9"))
    assert len(resumed.visited) < len(straight.visited) - 9


def test_the_last_checkpoint_is_found_and_old_ones_are_deleted_with_their_states(tmp_path: Path) -> None:
    first = make(tmp_path, save_strategy="steps", save_steps=3, save_total_limit=2, max_steps=11)
    first.train()
    states = sorted(tmp_path.rglob(STATE_FILE))
    assert [path.parent.name for path in states] == ["checkpoint-11", "checkpoint-9"]
    second = make(tmp_path, max_steps=14)
    second.train(resume_from_checkpoint=True)
    assert len(second.visited) == 3
    assert second.pruner.report()["kept"] == 2 * KEPT


def test_a_checkpoint_without_the_pruners_state_is_refused(tmp_path: Path) -> None:
    make(tmp_path, save_strategy="epoch", save_only_model=True, num_train_epochs=1).train()
    assert not list(tmp_path.rglob(STATE_FILE))
    with pytest.raises(StateError, match=r"must hold orderdp\.pt"):
        make(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="No valid checkpoint"):
        make(tmp_path / "nothing").train(resume_from_checkpoint=True)


# -- what cannot work ----------------------------------------------------------------------------------------------


class Stream(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(work.dataset())


class ForgetsTheIndex(PruningTrainer):
    def get_train_dataloader(self) -> Any:
        return Trainer.get_train_dataloader(self)


class NoLogits(torch.nn.Module):
    def __init__(self, answer: Any = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.answer = answer or {"loss": 1.0, "states": 2.0}

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("error", "message", "options"),
    [
        (FeedbackError, f"must have the samples' indices under '{INDEX}'", {"kind": ForgetsTheIndex}),
        (DatasetError, "must have a length", {"given": {"train_dataset": Stream()}}),
        (DatasetError, "must have a length", {"given": {"train_dataset": Stream()}, "max_steps": 5}),
        (DatasetError, "must have the 45 samples", {"given": {"train_dataset": [{"labels": 1}]}}),
        (FeedbackError, r"must have logits.*\['loss', 'states'\]", {"given": {"model": NoLogits()}}),
        (FeedbackError, "must have logits.*tuple", {"given": {"model": NoLogits((1, 2))}}),
        (
            ConfigError,
            "adds a loss of its own",
            {"given": {"model": NoLogits({"logits": torch.zeros(4, 4), "aux_loss": 1.0})}},
        ),
        (
            ConfigError,
            "predict that token or the next",
            {"given": {"model": NoLogits({"logits": torch.zeros(4, 5, 3)})}},
        ),
        (FeedbackError, "one class for each row", {"given": {"model": NoLogits({"logits": torch.zeros(3, 4)})}}),
        (ConfigError, "compute_loss_func returns one number", {"given": {"compute_loss_func": lambda *_, **__: 0}}),
        (FeedbackError, "losses", {"given": {"sample_losses": lambda outputs, _: outputs.logits.mean()}}),
        (ConfigError, "must be an orderdp.Pruner, got int", {"given": {"pruner": 3}}),
        (ConfigError, r"must know how many batches.*gives 3 to 12", {"policy": Undecided()}),
        (ConfigError, "its own order: .* 'random' or 'group_by_length'", {"train_sampling_strategy": "sequential"}),
        (
            ConfigError,
            "needs the length of every sample: a column 'length', or items that are dicts with 'input_ids', got dict",
            {
                "train_sampling_strategy": "group_by_length",
                "given": {"train_dataset": [{"labels": 1}] * N},
            },
        ),
        (
            ConfigError,
            'every="epoch"',
            {"train_sampling_strategy": "group_by_length", "policy": OrderDP(0.4, every="batch")},
        ),
        (ConfigError, "ignore_data_skip must be False", {"ignore_data_skip": True}),
        (
            ConfigError,
            "no full batch for every process",
            {"dataloader_drop_last": True, "per_device_train_batch_size": 40},
        ),
        (DatasetError, "must return a dict", {"given": {"data_collator": lambda items: (1, 2)}}),
    ],
)
def test_what_cannot_work_is_said(
    tmp_path: Path, error: type[Exception], message: str, options: dict[str, Any]
) -> None:
    with pytest.raises(error, match=message):
        make(tmp_path, **options).train()


def test_batches_are_grouped_by_length_and_the_samples_are_those_of_the_random_order(tmp_path: Path) -> None:
    options = {"learning_rate": 0.0, "dropout": 0.0}
    plain = make(tmp_path / "plain", **options)
    plain.train()
    grouped = make(tmp_path / "grouped", train_sampling_strategy="group_by_length", **options)
    grouped.train()
    lengths = torch.tensor([len(item["input_ids"]) for item in work.dataset()])

    def padding(trainer: Any) -> float:
        full = [batch for _, batch in trainer.visited if len(batch) == BATCH_SIZE]
        return sum(float((lengths[batch].max() - lengths[batch]).sum()) for batch in full) / len(full)

    assert [len(batch) for _, batch in grouped.visited] == [4, 4, 4, 4, 4, 4, 3] * EPOCHS
    selected = [{epoch: sorted(indices) for epoch, indices in by_epoch(t.visited).items()} for t in (plain, grouped)]
    assert selected[0][0] == selected[1][0]  # losses of float sums differ in their last bits from then on
    assert padding(grouped) < 0.3 * padding(plain)


def test_lengths_come_from_their_column_where_there_is_one(tmp_path: Path) -> None:
    rows = [{**item, "length": 1000 - number} for number, item in enumerate(work.dataset())]
    table = Dataset.from_list(rows)
    trainer = make(tmp_path, train_sampling_strategy="group_by_length", given={"train_dataset": table})
    trainer.train()
    for _, batch in trainer.visited:
        if len(batch) == BATCH_SIZE:
            assert max(batch) - min(batch) < N / 2
    assert huggingface.sample_lengths(table, trainer.args) == [1000 - number for number in range(N)]
    without = table.remove_columns("length")
    expected = [len(item["input_ids"]) for item in work.dataset()]
    assert huggingface.sample_lengths(without, trainer.args) == expected
    assert huggingface.sample_lengths(orderdp.Indexed(work.dataset()), trainer.args) == expected


def test_policies_whose_size_changes_over_epochs_are_refused(tmp_path: Path) -> None:
    policy = Scheduled(OrderDP(0.4), WarmUp(0.4, epochs=1))
    with pytest.raises(ConfigError, match="gives 12 to 12 in epoch 0, 7 to 7 in epoch 1"):
        make(tmp_path, policy=policy).train()
    make(tmp_path, policy=policy, max_steps=12).train()  # only one epoch of it


def test_labels_that_are_missing_and_trials_are_refused(tmp_path: Path) -> None:
    bare = [{name: item[name] for name in ("input_ids", "attention_mask")} for item in work.dataset()]
    with pytest.raises(FeedbackError, match="must have labels"):
        make(tmp_path, given={"train_dataset": bare}).train()
    with pytest.raises(ConfigError, match="share the scores of one pruner"):
        make(tmp_path).train(trial=SimpleNamespace(number=1))


class WeightsClasses(Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**{name: value for name, value in inputs.items() if name != "labels"})
        weight = torch.tensor([1.0, 10.0, 100.0, 1000.0])
        loss = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight)
        return (loss, outputs) if return_outputs else loss


class MixedIn(PruningMixin, WeightsClasses):
    pass


def weighted_losses(outputs: Any, inputs: Any) -> torch.Tensor:
    weight = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    return torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], weight, reduction="none")


def test_a_loss_of_the_trainer_behind_the_mixin_is_not_replaced_in_silence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"must be transformers' own, got that of WeightsClasses.*sample_losses"):
        make(tmp_path, kind=MixedIn)
    given = {"sample_losses": weighted_losses, "eval_dataset": work.dataset()[:8]}
    trainer = make(tmp_path, kind=MixedIn, given=given, num_train_epochs=1, learning_rate=0.0, dropout=0.0)
    trainer.train()
    scores, index = trainer.pruner.scores, int(trainer.pruner.scores.isfinite().nonzero()[0])
    alone = trainer.data_collator([trainer.train_dataset[index]])
    assert scores[index].item() == pytest.approx(weighted_losses(trainer.model.eval()(**alone), alone).item(), rel=1e-4)
    batch = trainer.data_collator(given["eval_dataset"])
    own = trainer.compute_loss(trainer.model.eval(), batch)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(own.item(), rel=1e-4), "evaluation is the Trainer's own"


@pytest.mark.parametrize("accumulate", [1, 4])
def test_a_loss_in_front_of_the_mixin_must_come_back_to_the_pruner(tmp_path: Path, accumulate: int) -> None:
    options = {"gradient_accumulation_steps": accumulate, "save_strategy": "steps", "save_steps": 1}
    silent = make(tmp_path / "silent", kind=work.SilentTrainer, **options)
    with pytest.raises(FeedbackError, match=r"received no losses in the first step.*super\(\)\.compute_loss"):
        silent.train()
    assert silent.state.global_step == 1
    make(tmp_path, **options, max_steps=3).train()
    resumed = make(tmp_path, kind=work.SilentTrainer, **options)
    with pytest.raises(FeedbackError, match="received no losses"):
        resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4


class Tells(work.SilentTrainer):
    """Computes its loss alone, but the pruner hears of it; of a whole step at once, when its last batch is there."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        waiting = self.__dict__.setdefault("waiting", [])
        waiting.append(inputs[INDEX])
        if self.accelerator.sync_gradients:
            index = torch.cat(waiting)
            self.pruner.update(index, loss.detach().expand(len(index)))
            waiting.clear()
        return loss


def test_losses_may_come_back_another_way_or_not_at_all_where_none_is_needed(tmp_path: Path) -> None:
    telling = make(tmp_path, kind=Tells, gradient_accumulation_steps=4, num_train_epochs=2)
    telling.train()
    assert telling.pruner.report()["kept"] == 2 * KEPT
    indifferent = make(tmp_path, kind=work.SilentTrainer, policy=policies.DynamicRandom(0.4), num_train_epochs=2)
    assert indifferent.train().global_step == 14


class RunsOutOfMemory(PruningTrainer):
    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        if self._train_batch_size == BATCH_SIZE:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(*args, **kwargs)


def test_a_first_step_that_does_not_fit_into_memory_is_no_missing_loss(tmp_path: Path) -> None:
    trainer = make(tmp_path, kind=RunsOutOfMemory, auto_find_batch_size=True, num_train_epochs=1)
    trainer.train()
    assert trainer._train_batch_size < BATCH_SIZE
    assert trainer.pruner.report()["kept"] == KEPT


@pytest.mark.parametrize("policy", [policies.ActiveBias(0.4), policies.DynamicUncertainty(0.4)], ids=["one", "other"])
@pytest.mark.parametrize("task", ["words", "numbers", "answers", "several"])
def test_a_policy_that_wants_predictions_says_that_it_is_for_one_class_a_sample(
    tmp_path: Path, policy: Any, task: str
) -> None:
    rows = work.dataset()
    given: dict[str, Any] = {}
    if task == "numbers":
        rows = [{**row, "labels": row["labels"] + 0.5} for row in rows]
        given = {"model": work.model(num_labels=1), "train_dataset": rows}
    elif task == "several":
        rows = [{**row, "labels": [0.0, 1.0, 1.0, 0.0]} for row in rows]
        given = {"train_dataset": rows}
    elif task == "answers":
        rows = [{"input_ids": row["input_ids"], "answer": row["labels"]} for row in rows]
        losses = lambda outputs, inputs: outputs["first"][:, 0] - inputs["answer"]  # noqa: E731
        given = {"model": First(), "train_dataset": rows, "sample_losses": losses}
    reason = rf"^{type(policy).__name__}\(.*needs probability.*got logits .* and labels.*needs losses only"
    with pytest.raises(ConfigError, match=reason):
        make(tmp_path, "words" if task == "words" else "classify", policy, given=given).train()


class First(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 4)

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None, answer: Any = None) -> Any:
        return {"first": self.layer(input_ids[:, :1].float())}


class Insists(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 4)
        self.shown: list[bool] = []

    def forward(self, input_ids: torch.Tensor, labels: Any, attention_mask: Any = None) -> Any:
        self.shown.append(labels is not None)
        return {"logits": self.layer(input_ids[:, :1].float())}


class UsesThemAnyway(Insists):
    """Says that labels may be missing, and cannot do without."""

    def forward(self, input_ids: torch.Tensor, labels: Any = None, attention_mask: Any = None) -> Any:
        outputs = super().forward(input_ids, labels, attention_mask)
        return {"loss": torch.nn.functional.cross_entropy(outputs["logits"], labels), **outputs}


class TakesAll(UsesThemAnyway):
    def forward(self, **batch: Any) -> Any:
        return super().forward(batch["input_ids"], batch["labels"])


class Pair(UsesThemAnyway):
    """Returns a loss and logits, as a model with return_dict=False does."""

    def forward(self, input_ids: torch.Tensor, labels: Any = None, attention_mask: Any = None) -> Any:
        outputs = super().forward(input_ids, labels, attention_mask)
        return outputs["loss"], outputs["logits"]


class Targets(UsesThemAnyway):
    """Has another name for its labels."""

    def forward(self, input_ids: torch.Tensor, targets: Any = None, attention_mask: Any = None) -> Any:
        return super().forward(input_ids, targets, attention_mask)


class Unlabeled(Insists):
    """Has no place for labels."""

    def forward(self, input_ids: torch.Tensor, attention_mask: Any = None) -> Any:
        return super().forward(input_ids, None, attention_mask)


def own_model(kind: type[Insists]) -> dict[str, Any]:
    """Arguments of the Trainer and of `make` for a model that transformers does not know."""
    torch.manual_seed(0)
    rows, more = work.dataset(), {}
    if kind is Targets:
        rows = [{**{name: row[name] for name in row if name != "labels"}, "targets": row["labels"]} for row in rows]
        more = {"label_names": ["targets"]}
    if kind in (TakesAll, Unlabeled):
        more = {"remove_unused_columns": False, "label_names": ["labels"]}
    return {"given": {"model": kind(), "train_dataset": rows, "eval_dataset": rows[:4]}, **more}


OWN = [Insists, UsesThemAnyway, TakesAll, Pair, Targets]


@pytest.mark.parametrize("kind", OWN)
def test_a_model_of_ones_own_gets_the_labels_at_every_step_as_from_the_plain_trainer(
    tmp_path: Path, kind: type[Insists]
) -> None:
    options = own_model(kind)
    trainer = make(tmp_path, learning_rate=0.0, **options)
    trainer.train()
    model = options["given"]["model"]
    assert model.shown == EPOCHS * 7 * [True], "one forward pass a step"
    if kind is not Insists:  # it has no loss to evaluate
        assert trainer.evaluate()["eval_loss"] > 0
    for index in trainer.pruner.scores.isfinite().nonzero().flatten().tolist():
        row = options["given"]["train_dataset"][index]
        logits = model.layer(torch.tensor([[float(row["input_ids"][0])]]))
        label = torch.tensor([row["targets" if kind is Targets else "labels"]])
        assert trainer.pruner.scores[index].item() == pytest.approx(label_losses(logits, label).item(), rel=1e-4)


@pytest.mark.parametrize("kind", OWN)
def test_a_function_for_the_losses_gets_labels_and_what_the_model_returns_for_them(
    tmp_path: Path, kind: type[Insists]
) -> None:
    options, heard = own_model(kind), []

    def losses(outputs: Any, inputs: Any) -> torch.Tensor:
        heard.append((type(outputs), sorted(outputs) if isinstance(outputs, dict) else len(outputs), sorted(inputs)))
        logits = outputs[1] if isinstance(outputs, tuple) else outputs["logits"]
        return torch.nn.functional.cross_entropy(logits, inputs.get("labels", inputs.get("targets")), reduction="none")

    options["given"]["sample_losses"] = losses
    make(tmp_path, num_train_epochs=1, **options).train()
    assert options["given"]["model"].shown == 7 * [True]
    returned = {Insists: (dict, ["logits"]), Pair: (tuple, 2)}.get(kind, (dict, ["logits", "loss"]))
    names = sorted(["attention_mask", "input_ids", "targets" if kind is Targets else "labels", INDEX])
    assert heard == 7 * [(*returned, names)]


def test_a_model_without_a_place_for_labels_gets_none(tmp_path: Path) -> None:
    options = own_model(Unlabeled)
    make(tmp_path, num_train_epochs=1, **options).train()
    assert options["given"]["model"].shown == 7 * [False]


class Library(BertForSequenceClassification):
    """Notes whether it gets labels; its forward is that of transformers."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.setdefault("shown", []).append("labels" in kwargs)
        return super().__call__(*args, **kwargs)


@pytest.mark.parametrize("return_dict", [True, False])
def test_a_model_of_transformers_computes_its_own_loss_for_the_check_only(tmp_path: Path, return_dict: bool) -> None:
    model = Library(work.model().config)
    model.config.return_dict = return_dict
    make(tmp_path, given={"model": model}, num_train_epochs=1).train()
    assert model.shown == [True] + 6 * [False]


class OnlyItsLoss(UsesThemAnyway):
    def forward(self, input_ids: torch.Tensor, labels: Any = None, attention_mask: Any = None) -> Any:
        return {"loss": super().forward(input_ids, labels, attention_mask)["loss"]}


def test_a_model_that_shows_no_logits_and_cannot_do_without_labels_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FeedbackError, match=r"must have logits.*it has \['loss'\].*sample_losses"):
        make(tmp_path, **own_model(OnlyItsLoss)).train()


class Several(NoLogits):
    def __init__(self) -> None:
        super().__init__({"logits": torch.zeros(4, 4)})

    def forward(self, input_ids: Any, first: Any = None, second: Any = None) -> Any:
        return self.answer


def test_of_several_labels_none_is_guessed(tmp_path: Path) -> None:
    rows = [{"input_ids": [1], "first": 1, "second": 2} for _ in work.dataset()]
    given = {"model": Several(), "train_dataset": rows, "data_collator": None}
    with pytest.raises(FeedbackError, match=r"must have labels.*\['first', 'input_ids', 'second'\].*sample_losses"):
        make(tmp_path, given=given, label_names=["first", "second"]).train()


def test_a_model_that_makes_its_decoders_input_of_the_labels_is_trained_on_the_same_tokens(tmp_path: Path) -> None:
    sizes = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
    config = T5Config(vocab_size=len(work.texts()[0]), decoder_start_token_id=0, **sizes)

    class MyTrainer(PruningMixin, Seq2SeqTrainer):
        pass

    trainer = make(
        tmp_path, "words", kind=MyTrainer, given={"model": T5ForConditionalGeneration(config)}, num_train_epochs=1,
        args_kind=Seq2SeqTrainingArguments, learning_rate=0.0,
    )  # fmt: skip
    trainer.train()
    scores, model = trainer.pruner.scores, trainer.model.eval()
    index = int(scores.isfinite().nonzero()[0])
    alone = trainer.data_collator([trainer.train_dataset[index]])
    assert scores[index].item() == pytest.approx(model(**alone).loss.item(), rel=1e-4)


# -- a model's own loss --------------------------------------------------------------------------------------------


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "autocast": {"bf16": True},
    "compiled": {"torch_compile": True, "torch_compile_backend": "eager"},
    "checkpointed": {"gradient_checkpointing": True},
    "accumulated": {"gradient_accumulation_steps": 4},
}


@pytest.mark.parametrize("task", ["classify", "words"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_a_model_with_a_loss_of_its_own_is_refused_and_others_are_not(tmp_path: Path, task: str, setting: str) -> None:
    options = {"num_train_epochs": 1, **SETTINGS[setting]}
    make(tmp_path, task, **options).train()
    own = work.model_with_own_loss(task)
    with pytest.raises(
        ConfigError, match=r"the model's own loss must be the mean.*got .* from the model.*sample_losses"
    ):
        make(tmp_path, task, given={"model": own}, **options).train()
    given = {"model": own, "sample_losses": lambda outputs, inputs: outputs.logits.flatten(1).logsumexp(1)}
    assert make(tmp_path, task, given=given, **options).train().global_step


@pytest.mark.parametrize("task", ["classify", "words"])
def test_to_look_at_the_models_own_loss_changes_nothing_about_the_training(tmp_path: Path, task: str) -> None:
    looked = make(tmp_path, task, num_train_epochs=1)

    def losses(outputs: Any, inputs: Any) -> torch.Tensor:
        assert outputs.get("loss") is None
        return output_losses(looked.model, outputs, inputs)

    unlooked = make(tmp_path, task, given={"sample_losses": losses}, num_train_epochs=1)
    for trainer in (looked, unlooked):
        set_seed(3)  # of dropout
        trainer.train()
    assert_same_weights(work.weights(looked), work.weights(unlooked))
    assert looked.visited == unlooked.visited


def test_where_the_trainer_smooths_labels_the_models_loss_is_not_asked_for(tmp_path: Path) -> None:
    weighted = work.model_with_own_loss()
    trainer = make(tmp_path, given={"model": weighted}, num_train_epochs=1, label_smoothing_factor=0.1)
    assert trainer.train().global_step == 7


class Answers(torch.nn.Module):
    """Has the logits and the loss that it is given; `fused` says that shown the labels it has no logits."""

    def __init__(self, logits: torch.Tensor, loss: Any, fused: bool = False) -> None:
        super().__init__()
        self.logits, self.loss, self.fused = logits, loss, fused
        self.calls: list[bool] = []

    def forward(self, labels: Any = None) -> dict[str, Any]:
        self.calls.append(labels is not None)
        if labels is None:
            return {"logits": self.logits}
        return {"loss": self.loss} if self.fused else {"logits": self.logits, "loss": self.loss}

    forward.__module__ = "transformers.models.made_up"  # a class of one's own always gets the labels


LOGITS = torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.5, 0.0], [0.0, 3.0], [1.0, 0.0]])


def asked(look: OwnLoss, model: Answers, labels: torch.Tensor) -> bool:
    """Goes through one batch; whether the labels were shown."""
    batch, before = {"labels": labels}, len(model.calls)
    outputs = look.outputs(model, model, batch)
    assert set(outputs) == {"logits"}
    look.check(model, outputs, batch, output_losses(model, outputs, batch))
    return model.calls[before]


def test_batches_are_compared_until_one_can_tell_weighted_classes_from_others() -> None:
    look, labels = OwnLoss(compare=True), torch.tensor([0, 1, 1, 0, 0])
    weigh = torch.nn.CrossEntropyLoss(torch.tensor([1.0, 9.0]))
    for _ in range(3):  # of one class, weights cancel out
        assert asked(look, Answers(LOGITS, weigh(LOGITS, 0 * labels)), 0 * labels)
    assert asked(look, Answers(LOGITS, torch.tensor(torch.nan)), torch.full((5,), -100))
    with pytest.raises(ConfigError, match="the model's own loss"):
        asked(look, Answers(LOGITS, weigh(LOGITS, labels)), labels)
    look = OwnLoss(compare=True)
    assert asked(look, Answers(LOGITS, torch.nn.functional.cross_entropy(LOGITS, labels)), labels)
    assert not asked(look, Answers(LOGITS, weigh(LOGITS, labels)), labels), "once is enough"
    look, alone = OwnLoss(compare=True), Answers(LOGITS[:1], weigh(LOGITS[:1], labels[:1]))
    shown = [asked(look, alone, labels[:1]) for _ in range(100)]
    assert 1 < sum(shown) < 50, "single samples can never tell"


def test_a_loss_for_each_device_is_compared_with_its_share_of_the_batch() -> None:
    labels = torch.tensor([0, 1, -100, 0, 0])
    parts = zip(LOGITS.chunk(2), labels.chunk(2), strict=True)
    losses = torch.stack([torch.nn.functional.cross_entropy(*part) for part in parts])
    assert asked(OwnLoss(compare=True), Answers(LOGITS, losses), labels)
    with pytest.raises(ConfigError, match="the model's own loss"):
        asked(OwnLoss(compare=True), Answers(LOGITS, losses.flip(0)), labels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference_but_more_is(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = (3 * torch.randn(64, 7, generator=generator)).to(dtype)
    labels = torch.randint(0, 7, (64,), generator=generator)
    own = torch.nn.functional.cross_entropy(logits, labels)
    assert own.dtype == dtype
    assert asked(OwnLoss(compare=True), Answers(logits, own), labels)
    with pytest.raises(ConfigError, match="the model's own loss"):
        asked(OwnLoss(compare=True), Answers(logits, 1.02 * own), labels)


def test_a_model_that_hides_its_logits_when_it_sees_labels_is_called_without_them() -> None:
    look, labels = OwnLoss(compare=True), torch.tensor([0, 1, 1, 0, 0])
    fused = Answers(LOGITS, torch.tensor(1.0), fused=True)
    asked(look, fused, labels)
    assert fused.calls == [True, False]
    asked(look, fused, labels)
    assert fused.calls == [True, False, False]


def test_without_transformers_the_error_has_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(vars(huggingface), "PruningTrainer", raising=False)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match=re.escape("pip install '.[transformers]'")):
        _ = huggingface.PruningTrainer
    with pytest.raises(AttributeError, match="PrunningTrainer"):
        _ = huggingface.PrunningTrainer
    monkeypatch.undo()
    assert issubclass(huggingface.PruningTrainer, PruningMixin)


# -- several samples in a row --------------------------------------------------------------------------------------


WORDS = [{"input_ids": row["input_ids"]} for row in work.dataset("words")]


def filled_up(items: list[Any]) -> dict[str, torch.Tensor]:
    """One row without padding between samples, to a multiple of 8 with places that belong to none."""
    batch = dict(DataCollatorWithFlattening()(items))
    more, fill = -batch["input_ids"].shape[1] % 8, {"input_ids": 0, "labels": -100, "position_ids": 0}
    return {name: torch.nn.functional.pad(batch[name], (0, more), value=fill[name]) for name in fill}


def test_samples_that_share_a_row_without_padding_get_a_loss_each(tmp_path: Path) -> None:
    assert len(filled_up(WORDS[:3])["input_ids"]) == 1
    options = {"dropout": 0.0, "learning_rate": 0.0, "num_train_epochs": 1}
    trainer = make(tmp_path, "words", given={"train_dataset": WORDS, "data_collator": filled_up}, **options)
    trainer.train()
    seen = trainer.pruner.scores.isfinite().nonzero().flatten().tolist()
    assert len(seen) == KEPT
    model = trainer.model.eval()
    for index in seen:
        ids = torch.tensor([WORDS[index]["input_ids"]])
        with torch.no_grad():
            assert trainer.pruner.scores[index].item() == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-4)


def test_a_loss_of_packed_samples_that_is_not_the_models_own_is_refused(tmp_path: Path) -> None:
    given = {"train_dataset": WORDS, "data_collator": filled_up, "model": work.model_with_own_loss("words")}
    with pytest.raises(ConfigError, match="the model's own loss must be the mean"):
        make(tmp_path, "words", given=given).train()


def cut(items: list[Any]) -> dict[str, torch.Tensor]:
    """One row of the first two words of each, as long as if it had all words."""
    ids = torch.tensor([[word for item in items for word in item["input_ids"][:2]]])
    labels = torch.where(torch.arange(ids.shape[1]) % 2 == 0, -100, ids)
    more = sum(len(item["input_ids"]) for item in items) - ids.shape[1]
    pad = torch.nn.functional.pad
    return {"input_ids": pad(ids, (0, more)), "labels": pad(labels, (0, more), value=-100)}


def test_packed_samples_whose_places_are_unknown_need_a_function_with_segments(tmp_path: Path) -> None:
    rows = [{"input_ids": [*row["input_ids"], 1, 1]} for row in WORDS]
    given = {"train_dataset": rows, "data_collator": cut}
    hint = r"row for each of its 4 samples, it has one.*sample_losses.*orderdp\.per_sample\(losses, segments="
    with pytest.raises(FeedbackError, match=hint):
        make(tmp_path, "words", given=given).train()

    def losses(outputs: Any, inputs: Any) -> torch.Tensor:
        logits, labels = outputs.logits[:, :-1], inputs["labels"][:, 1:]
        tokens = torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        segments = torch.arange(1, inputs["labels"].shape[1]).unsqueeze(0) // 2
        segments = torch.where(segments < len(inputs[INDEX]), segments, -1)
        return orderdp.per_sample(tokens, mask=labels != -100, segments=segments, count=len(inputs[INDEX]))

    trainer = make(tmp_path, "words", given={**given, "sample_losses": losses}, num_train_epochs=1)
    trainer.train()
    assert trainer.pruner.report()["kept"] == KEPT


@pytest.mark.parametrize("padded", [True, False])
def test_the_trainer_of_trl_gives_each_text_its_own_loss(tmp_path: Path, padded: bool) -> None:
    trainer = with_trl.make_trainer(str(tmp_path), texts=40, epochs=1, padded=padded, learning_rate=0.0)
    batch = next(iter(trainer.get_train_dataloader()))
    assert len(batch[INDEX]) == 8
    assert len(batch["input_ids"]) == (8 if padded else 1)
    trainer.train()
    seen = trainer.pruner.scores.isfinite().nonzero().flatten().tolist()
    assert len(seen) == round(0.6 * trainer.pruner.n)
    model = trainer.model.eval()
    for index in seen:
        ids = torch.tensor([trainer.train_dataset[index]["input_ids"]])
        with torch.no_grad():
            own = model(input_ids=ids, labels=ids).loss.item()
        assert trainer.pruner.scores[index].item() == pytest.approx(own, rel=1e-4)


def test_the_trainer_of_trl_without_a_function_is_told_which_one_it_needs() -> None:
    with pytest.raises(ConfigError, match=r"got that of SFTTrainer.*next_token_losses is that of TRL's SFTTrainer"):
        with_trl.PruningSFTTrainer(work.model("words"), pruner=Pruner(OrderDP(0.4), N))
    with pytest.raises(FeedbackError, match="needs logits and labels, got logits None and a batch of"):
        next_token_losses({"loss": 1}, {"labels": torch.zeros(1)})


class FusedTrainer(PruningTrainer):
    """Has a loss for the whole batch only, as fused kernels do: the lines of the guide."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if INDEX not in inputs:
            return super().compute_loss(model, inputs, *args, **kwargs)
        batch = {name: value for name, value in inputs.items() if not name.startswith("orderdp_")}
        return self.pruner.update(inputs[INDEX], model(**batch).loss, reduced=True)


def test_a_fused_loss_of_the_batch_is_every_samples_score(tmp_path: Path) -> None:
    trainer = make(tmp_path, "words", kind=FusedTrainer, dropout=0.0, learning_rate=0.0, num_train_epochs=1)
    trainer.train()
    for batch in Pruner(OrderDP(0.4), N, seed=5).batch_sampler(BATCH_SIZE):
        alone = trainer.data_collator([trainer.train_dataset[index] for index in batch])
        with torch.no_grad():
            loss = trainer.model.eval()(**alone).loss.item()
        assert trainer.pruner.scores[batch].tolist() == pytest.approx(len(batch) * [loss], rel=1e-4)


# -- parts of epochs -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "steps"), [(2.5, 18), (0.4, 3)])
def test_a_part_of_an_epoch_is_trained_to_the_step_and_resumes(tmp_path: Path, epochs: float, steps: int) -> None:
    """Seven steps an epoch."""
    saving = {"save_strategy": "steps", "save_steps": 1, "logging_steps": 1}
    trainer = make(tmp_path / "straight", num_train_epochs=epochs, **saving)
    output = trainer.train()
    assert output.global_step == trainer.state.max_steps == len(trainer.visited) == steps
    whole, part = divmod(steps, 7)
    assert [len(batch) for batch in by_epoch(trainer.visited).values()] == [KEPT] * whole + [4 * part]
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]
    assert rates[-1] == pytest.approx(0.01 / steps), "the schedule ends with the training"
    resumed = make(tmp_path / "resumed", seed=1, num_train_epochs=epochs)
    resumed.train(resume_from_checkpoint=str(tmp_path / "straight" / f"checkpoint-{steps - 1}"))
    assert resumed.visited == trainer.visited[-1:]
    assert_same_weights(work.weights(resumed), work.weights(trainer))


# -- two processes -------------------------------------------------------------------------------------------------


def torchrun(*job: str) -> subprocess.CompletedProcess[str]:
    """Runs a job in two processes as people do; they meet on the loopback device, at a port of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *job]
    source = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=400, check=False)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("two")
    run = torchrun("-m", "tests.huggingface_work", str(folder))
    assert run.returncode == 0, run.stderr[-4000:]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


def test_two_processes_train_on_what_was_selected(ranks: list[dict[str, Any]]) -> None:
    """27 samples in rounds of 8: the last one has 3, and Accelerate fills it up with 5 of the epoch's first."""
    runs = [rank["straight"] for rank in ranks]
    pruner = Pruner(OrderDP(0.4), N)
    assert runs[0]["steps"] == runs[0]["max_steps"] == pruner.steps(EPOCHS, BATCH_SIZE, world_size=2, split="batches")
    parts = [by_epoch(run["visited"]) for run in runs]
    for epoch in range(EPOCHS):
        both = Counter(parts[0][epoch]) + Counter(parts[1][epoch])
        assert sorted(both) == ranks[0]["selections"][epoch] == ranks[1]["selections"][epoch]
        assert len(both) == KEPT
        assert both.total() == 32
    assert torch.equal(runs[0]["scores"], runs[1]["scores"])
    assert torch.equal(runs[0]["usage"], runs[1]["usage"])
    assert runs[0]["kept"] == int(runs[0]["usage"].sum()) == EPOCHS * 32
    assert_same_weights(runs[0]["weights"], runs[1]["weights"])


def test_two_processes_with_whole_batches_repeat_nothing(ranks: list[dict[str, Any]]) -> None:
    parts = [by_epoch(rank["dropping"]["visited"]) for rank in ranks]
    for epoch in range(EPOCHS):
        together = parts[0][epoch] + parts[1][epoch]
        assert len(together) == len(set(together)) == 24
    assert ranks[0]["dropping"]["epoch"] == EPOCHS


def test_two_processes_go_on_in_mid_epoch_with_the_weights_of_the_straight_run(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        straight, resumed = rank["straight"], rank["resumed"]
        assert resumed["visited"] == straight["visited"][6:]
        assert_same_weights(resumed["weights"], straight["weights"])
        assert torch.equal(resumed["scores"], straight["scores"])
        assert resumed["kept"] == straight["kept"]


def test_what_would_leave_processes_waiting_is_refused_by_all_of_them(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "Use Pruner(..., shard=False)" in rank["sharded"]
        assert "must have even_batches=True" in rank["uneven"]
        assert "must have dispatch_batches=False" in rank["dispatched"]
        assert "received no losses in the first step" in rank["silent"]
        assert "the model's own loss must be the mean" in rank["weighted"]


@pytest.mark.parametrize(
    ("message", "sharing", "options"),
    [
        ("only 1 do", 1, {}),
        ("split_batches=False", 2, {"split_batches": True}),
        ("dispatch_batches=False", 2, {"dispatch_batches": True}),
        ("even_batches=True", 2, {"even_batches": False}),
    ],
)
def test_processes_that_do_not_get_batches_of_their_own_are_refused(
    message: str, sharing: int, options: dict[str, bool]
) -> None:
    settings = {"dispatch_batches": None, "split_batches": False, "even_batches": True, **options}
    args = SimpleNamespace(
        gradient_accumulation_steps=3,
        dataloader_drop_last=False,
        num_train_epochs=1,
        max_steps=-1,
        ignore_data_skip=False,
    )
    trainer = SimpleNamespace(
        args=args,
        accelerator=SimpleNamespace(num_processes=2, **settings),
        _train_batch_size=4,
        get_total_train_batch_size=lambda args: 4 * 3 * sharing,
    )
    with pytest.raises(ConfigError, match=message):
        check_trainer(trainer, Pruner(OrderDP(0.4), N, shard=False))
    trainer.accelerator = SimpleNamespace(
        num_processes=2, dispatch_batches=None, split_batches=False, even_batches=True
    )
    trainer.get_total_train_batch_size = lambda args: 4 * 3 * 2
    check_trainer(trainer, Pruner(OrderDP(0.4), N, shard=False))


# -- the example ---------------------------------------------------------------------------------------------------


def test_the_example_trains_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.main(["--epochs", "2", "--output", str(tmp_path)])
    example.main(["--epochs", "6", "--output", str(tmp_path), "--resume"])
    said = capsys.readouterr().out
    assert said.count("40.0% fewer samples") == 2
    assert float(said.split("test accuracy ")[-1].split(",")[0]) > 0.6
    example.main(["--epochs", "1", "--task", "words"])
    assert "test loss" in capsys.readouterr().out


def test_the_collator_keeps_the_order_of_the_items() -> None:
    batch = IndexKeeper(lambda items: {"x": torch.tensor(items)})([(7, 70), (3, 30)])
    assert batch["x"].tolist() == [70, 30]
    assert batch[INDEX].tolist() == [7, 3]
    assert batch[INDEX].dtype == torch.int64
