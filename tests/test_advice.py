"""Advice on what can be pruned: counts against a slow restatement, and words that claim no more than the counts."""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import orderdp
from orderdp import Budget, OrderDP, Pruner, Unlearned, advise, save_checkpoint
from orderdp.advice import Advice
from orderdp.cli import main
from orderdp.errors import ConfigError
from orderdp.losses import smallest_loss
from orderdp.policies import UCB, FullData, LossBelow, LossShare, Probability, RelativeLoss, SkipLearned
from orderdp.streaming import GrowingPruner
from orderdp.theory import gradient_bound, skip_bias_bound
from tests.runs import full, run, write

LOSSES = st.lists(
    st.sampled_from([0.0, 0.01, 0.05, 0.1, 0.11, 0.5, 2.0, math.inf]) | st.floats(0, 5), min_size=1, max_size=60
)


def told(advice: Advice) -> str:
    """The words in one line."""
    return " ".join(str(advice).split())


def trained(n: int, learned: int, *, seen: int | None = None, epochs: int = 1, policy: object = None) -> Pruner:
    """A pruner of which so many samples have been seen, and so many of those are learned."""
    pruner = Pruner(FullData() if policy is None else policy, n, epochs=10)
    losses = torch.cat((torch.full((learned,), 0.05), torch.full((n - learned,), 1.0)))[: n if seen is None else seen]
    for _ in range(epochs):
        for batch in pruner.batch_sampler(n):
            index = torch.as_tensor(batch)
            index = index[index < len(losses)]
            pruner.update(index, losses[index])
        pruner.end_epoch()
    return pruner


# -- the counts --------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(LOSSES, st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.1, 0.5]))
def test_the_numbers_are_those_of_a_count_by_hand(losses, probability, refresh) -> None:
    advice = advise(np.array(losses), learned=probability, refresh=refresh)
    learned = seen = 0
    at = dict.fromkeys((0.5, 0.8, 0.9, 0.95, 0.99), 0)
    for loss in losses:
        seen += math.isfinite(loss)
        learned += loss <= -math.log(probability)
        for level in at:
            at[level] += loss <= -math.log(level)
    assert (advice.samples, advice.seen) == (len(losses), seen)
    assert advice.learned == learned / len(losses)
    assert advice.saving == pytest.approx((1 - refresh) * learned / len(losses))
    assert advice.learned_at == tuple((level, count / len(losses)) for level, count in at.items())
    assert advice.threshold == -math.log(probability)
    assert advice.gradient_bound == pytest.approx(advice.saving * math.sqrt(2) * (1 - probability))


@settings(max_examples=100, deadline=None)
@given(LOSSES)
def test_quantiles_are_of_the_seen_losses(losses) -> None:
    advice = advise(np.array(losses))
    ordered = sorted(loss for loss in losses if math.isfinite(loss))
    if not ordered:
        assert advice.quantiles == ()
        return
    for share, loss in advice.quantiles:
        place = share * (len(ordered) - 1)
        below, above = ordered[math.floor(place)], ordered[math.ceil(place)]
        assert loss == pytest.approx(below + (place - math.floor(place)) * (above - below))
    assert [share for share, _ in advice.quantiles] == [0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]


def test_the_bound_holds_for_the_gradients_of_a_model() -> None:
    """By autograd: what is left out of the mean gradient in the logits has at most that norm."""
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(500, 5, generator=generator)).double().requires_grad_()
    targets = logits.argmax(1).where(torch.arange(500) % 5 > 0, torch.randint(0, 5, (500,), generator=generator))
    losses = F.cross_entropy(logits, targets, reduction="none")
    (gradients,) = torch.autograd.grad(losses.sum(), logits)
    advice = advise(losses, refresh=0.0)
    left_out = gradients[losses <= advice.threshold]
    assert advice.learned == len(left_out) / 500 > 0.1
    assert 0 < (left_out.sum(0) / 500).norm().item() <= left_out.norm(dim=1).sum().item() / 500
    assert left_out.norm(dim=1).sum().item() / 500 <= advice.gradient_bound


def test_a_pruner_and_its_losses_give_the_same_advice() -> None:
    pruner = trained(200, 80, seen=150, epochs=2)
    advice = advise(pruner)
    assert advice == dataclasses.replace(advise(pruner.scores), age=advice.age)
    assert advice.learned == pruner.report()["learned"] == 80 / 200
    assert advice.age == pruner.report()["staleness"] == 1.0
    assert advise(pruner.scores.numpy()) == advise(pruner.scores) == advise(pruner.scores.tolist())


def test_asking_changes_nothing() -> None:
    pruner = trained(50, 20)
    before = str(pruner.state_dict())
    advise(pruner)
    assert str(pruner.state_dict()) == before


def test_samples_that_were_removed_do_not_count() -> None:
    pruner = GrowingPruner(FullData(), 10)
    pruner.observe(torch.arange(10), torch.tensor([0.01] * 4 + [1.0] * 6))
    pruner.remove([0, 1, 4])
    advice = advise(pruner)
    assert (advice.samples, advice.learned) == (7, 2 / 7)


def test_the_bound_is_the_one_of_the_theory_with_label_smoothing_too() -> None:
    floor = smallest_loss(0.1, classes=10)
    losses = floor + np.array([0.0, 0.05, 0.1, 0.2, 3.0])
    advice = advise(losses, learned=Probability(0.9, floor=floor))
    assert advice.learned == 3 / 5
    assert advice.threshold == pytest.approx(floor - math.log(0.9))
    assert advice.gradient_bound == skip_bias_bound(advice.threshold, 3 / 5, 0.1, floor)
    assert advice.gradient_bound == pytest.approx(0.9 * 0.6 * math.sqrt(2 * -math.log(0.9)))


def test_other_thresholds_count_and_claim_no_bound() -> None:
    losses = np.array([0.1, 0.2, 0.3, 5.0])
    for rule in (LossBelow(0.25), LossShare(0.1)):
        advice = advise(losses, learned=rule)
        assert advice.learned == 0.5
        assert (advice.gradient_bound, advice.learned_at) == (None, ())
        assert "gradient" not in told(advice).split("Policies ")[0].replace("No bound on the gradient", "")
        assert f"orderdp.policies.{rule!r}" in told(advice)
    pruner = Pruner(SkipLearned(learned=RelativeLoss(0.5)), 4)
    for losses in ([4.0, 4.0, 4.0, 4.0], [1.0, 2.0, 3.0, 4.0]):
        next(iter(pruner.batch_sampler(4)))
        pruner.update([0, 1, 2, 3], torch.tensor(losses))
    assert advise(pruner, learned=RelativeLoss(0.5)).learned == 0.5


# -- the words ---------------------------------------------------------------------------------------------------------


def test_where_much_is_learned_it_says_how_much_and_what_to_write() -> None:
    advice = advise(trained(10_000, 3_800))
    text = told(advice)
    assert text.startswith("38 % of 10,000 samples are learned (the right class has probability >= 0.9).")
    assert "changes the mean gradient in the logits by at most 0.0484, on average over draws." in text
    assert "Up to about 34 % of an epoch" in text
    assert "larger savings cost what fewer epochs cost" in text
    assert "1.0 epochs old on average" in text
    assert advice.suggestions == ("orderdp.Unlearned(0.34)", "orderdp.Budget(0.66)")
    assert all(line in text for line in advice.suggestions)


@given(st.integers(0, 100), st.sampled_from([0.5, 0.9, 0.95]), st.sampled_from([0.0, 0.001, 0.1, 0.3, 0.99]))
@settings(max_examples=100, deadline=None)
def test_what_to_write_can_be_written_and_leaves_out_learned_samples_only(learned, probability, refresh) -> None:
    losses = np.array([0.001] * learned + [3.0] * (100 - learned))
    advice = advise(losses, learned=probability, refresh=refresh)
    for line in advice.suggestions:
        policy = eval(line, {"orderdp": orderdp})
        assert isinstance(policy, Budget | Unlearned)
        inner = policy.policy if isinstance(policy, Budget) else policy
        assert inner.learned == Probability(probability)
        assert inner.refresh == refresh
        left_out = 1 - policy.share if isinstance(policy, Budget) else policy.prune_ratio
        assert advice.saving - 0.01 - 1e-9 <= left_out <= advice.saving + 1e-9
    if learned < 10:
        assert advice.suggestions == ()


def test_what_to_write_has_the_threshold_it_was_asked_with() -> None:
    rule = Probability(0.95, floor=0.5)
    advice = advise(np.full(20, 0.52), learned=rule, refresh=0.2)
    skipping, policy = (eval(line, {"orderdp": orderdp}) for line in advice.suggestions)
    assert (skipping, policy) == (Unlearned(0.8, learned=rule, refresh=0.2), Budget(0.2, learned=rule, refresh=0.2))


@pytest.mark.parametrize("learned", [0, 1, 9])
def test_where_few_are_learned_it_says_so_and_suggests_nothing(learned: int) -> None:
    advice = advise(trained(100, learned))
    text = told(advice)
    assert text.startswith(f"{learned} % of 100 samples are learned")
    assert "nothing to leave out yet: train for fewer epochs instead, or ask again later." in text
    assert ("next to nothing" in text) == (learned > 0)
    assert "Budget" not in text
    assert advice.suggestions == ()
    assert "nothing to leave out" not in told(advise(trained(100, 10)))


def test_where_nothing_was_seen_it_says_only_that() -> None:
    for source in (Pruner(OrderDP(0.4), 1000), np.full(1000, np.inf)):
        advice = advise(source)
        assert told(advice) == "None of the 1,000 samples has a loss yet. Train for one epoch first."
        assert (advice.seen, advice.learned, advice.saving, advice.gradient_bound) == (0, 0.0, 0.0, 0.0)
        assert (advice.age, advice.quantiles) == (None, ())


def test_unseen_samples_count_as_not_learned_and_that_is_said() -> None:
    assert "Losses of 600 are known; the others count as not learned." in told(advise(trained(1000, 500, seen=600)))
    assert "are known" not in told(advise(trained(1000, 500)))


def test_where_all_is_learned_nothing_more_is_promised() -> None:
    advice = advise(trained(1000, 1000))
    text = told(advice)
    assert text.startswith("100 % of 1,000 samples are learned")
    assert "Up to about 90 % of an epoch" in text
    assert advice.suggestions == ("orderdp.Unlearned(0.9)", "orderdp.Budget(0.1)")
    assert "early epochs of a new training usually have less to leave out" in text


@pytest.mark.parametrize(("learned", "said"), [(940, False), (950, True), (1000, True)])
def test_where_nearly_all_is_learned_before_the_end_it_names_fewer_epochs(learned: int, said: bool) -> None:
    words = "Nearly all samples are learned. If many epochs remain, training for fewer of them costs next to nothing"
    assert (words in told(advise(trained(1000, learned)))) == said


@pytest.mark.parametrize("learned", [0, 50, 400, 1000])
def test_accuracy_is_never_promised(learned: int) -> None:
    text = told(advise(trained(1000, learned)))
    promised = text.replace("This says nothing about accuracy", "")
    assert "accuracy" not in promised
    assert "lossless" not in text
    assert ("This says nothing about accuracy" in text) == (learned >= 100)


def test_shares_that_are_not_whole_are_not_rounded_to_all_or_nothing() -> None:
    def first(learned: int) -> str:
        return told(advise(np.array([0.01] * learned + [2.0] * (10_000 - learned)))).split(" of 10,000")[0]

    assert [first(count) for count in (0, 1, 20, 9_980, 9_999, 10_000)] == [
        "0 %",
        "Below 0.1 %",
        "0.2 %",
        "99.8 %",
        "Above 99.9 %",
        "100 %",
    ]


@given(st.integers(100, 1000), st.floats(0.01, 0.99))
@settings(max_examples=100, deadline=None)
def test_a_bound_is_never_shown_smaller_than_it_is(learned, probability) -> None:
    losses = np.array([1e-9] * learned + [9.0] * (1000 - learned))
    advice = advise(losses, learned=probability)
    shown = float(told(advice).split("at most ")[1].split(",")[0])
    assert advice.gradient_bound <= shown <= 1.02 * advice.gradient_bound


def test_old_losses_are_called_old() -> None:
    pruner = trained(100, 50, epochs=1)
    for _ in range(5):  # only one sample is seen again
        next(iter(pruner.batch_sampler(100)))
        pruner.update([0], torch.tensor([0.05]))
        pruner.end_epoch()
    advice = advise(pruner)
    assert advice.age == pruner.report()["staleness"] > 4
    text = told(advice)
    assert f"the stored ones are {advice.age:.1f} epochs old on average" in text
    assert "pruner.observe(index, losses)" in text
    assert "pruner.observe" not in told(advise(trained(100, 50)))
    assert "the age of these is not known" in told(advise(pruner.scores))


def test_with_label_smoothing_no_probability_is_claimed() -> None:
    floor = smallest_loss(0.1, classes=10)
    text = told(advise(np.full(100, floor + 0.01), learned=Probability(0.9, floor=floor)))
    assert text.startswith(
        "100 % of 100 samples are learned (loss at most 0.606, 0.105 above the smallest possible loss)."
    )
    assert "probability" not in text.split(").")[0]


def test_where_nothing_is_learned_label_smoothing_that_was_not_told_is_thought_of() -> None:
    text = told(advise(np.full(100, 0.6)))
    assert "The smallest loss is 0.6." in text
    assert "label smoothing" in text
    assert "label smoothing" not in told(advise(np.array([0.01] * 5 + [0.6] * 95)))


def test_averages_are_not_taken_for_last_losses() -> None:
    pruner = Pruner(UCB(prune_ratio=0.3), 100)
    pruner.observe(torch.arange(100), torch.full((100,), 0.01))
    advice = advise(pruner)
    assert advice.averaged
    assert "running averages" in told(advice)
    assert "running averages" not in told(advise(trained(100, 50)))


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (np.zeros((3, 2)), {}, r"one loss for each sample, got shape \(3, 2\)"),
        (np.zeros(0), {}, r"one loss for each sample, got shape \(0,\)"),
        (np.array([0.1, np.nan]), {}, "got 1 of 2 that is NaN"),
        (np.array(["a"]), {}, "must be numbers"),
        (np.array([True, False]), {}, "must be numbers"),
        ("losses.npy", {}, "a Pruner, or an array with one loss for each sample.*got str"),
        (None, {}, "a Pruner, or an array with one loss for each sample.*got NoneType"),
        (np.array([0.1, -0.5]), {}, "cross-entropy is never below 0.*-0.5.*LossBelow"),
        (np.array([0.1, 2.0]), {"learned": Probability(0.9, floor=0.5)}, "never below 0.5.*0.1"),
        (np.ones(3), {"learned": 90}, "must be in \\(0, 1\\), got 90"),
        (np.ones(3), {"learned": "most"}, "learned must be the probability"),
        (np.ones(3), {"refresh": 10}, "refresh must be in \\[0, 1\\), got 10. It is a fraction"),
        (np.ones(3), {"refresh": 1}, "refresh must be in \\[0, 1\\), got 1"),
        (np.ones(3), {"learned": RelativeLoss(0.1)}, "first losses"),
    ],
)
def test_bad_input_is_named(source, options, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        advise(source, **options)


def test_rounding_below_the_smallest_loss_is_no_error() -> None:
    floor = smallest_loss(0.1, classes=10)
    losses = torch.full((10,), floor).bfloat16()
    assert losses[0].item() != floor
    assert advise(losses, learned=Probability(0.9, floor=floor)).learned == 1
    assert advise(torch.tensor([-1e-7, 1.0])).learned == 0.5


def test_advice_is_a_value() -> None:
    advice = advise(np.array([0.01, 2.0]))
    assert advice == advise(np.array([0.01, 2.0]))
    assert hash(advice) == hash(advise(np.array([0.01, 2.0])))
    with pytest.raises(dataclasses.FrozenInstanceError):
        advice.learned = 1.0  # type: ignore[misc]
    assert advice.gradient_bound == pytest.approx(0.45 * gradient_bound(-math.log(0.9)))


# -- the command -------------------------------------------------------------------------------------------------------


def say(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    assert main(["advise", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture, *arguments: object) -> str:
    assert main(["advise", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("orderdp advise: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_a_checkpoint_says_what_its_pruner_would(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    pruner = trained(1000, 380)
    path = tmp_path / "run.pt"
    save_checkpoint(path, {"model": {"weight": torch.zeros(3)}, "deep": [{"callbacks": {"a": pruner.state_dict()}}]})
    assert say(capsys, path) == f"{advise(pruner)}\n"
    assert (
        say(capsys, path, "--learned", "0.99", "--refresh", "0.2") == f"{advise(pruner, learned=0.99, refresh=0.2)}\n"
    )
    torch.save(pruner.state_dict(), path)
    assert say(capsys, path) == f"{advise(pruner)}\n"
    torch.save({"pruner": pruner.state_dict()}, path, _use_new_zipfile_serialization=False)
    assert say(capsys, path) == f"{advise(pruner)}\n"


def test_removed_samples_and_averages_are_known_from_a_checkpoint_too(tmp_path: Path, capsys) -> None:
    pruner = GrowingPruner(UCB(prune_ratio=0.2), 10)
    pruner.observe(torch.arange(10), torch.tensor([0.01] * 4 + [1.0] * 6))
    pruner.remove([0, 1, 4])
    save_checkpoint(tmp_path / "run.pt", {"pruner": pruner.state_dict()})
    assert say(capsys, tmp_path / "run.pt") == f"{advise(pruner)}\n"
    assert advise(pruner).averaged


def test_files_of_losses_are_read(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    losses = np.array([0.01] * 40 + [1.0] * 60)
    np.save(tmp_path / "a.npy", losses)
    np.savez(tmp_path / "b.npz", losses=losses, labels=np.zeros(100))
    np.savez(tmp_path / "c.npz", whatever=losses)
    for name in ("a.npy", "b.npz", "c.npz"):
        assert say(capsys, tmp_path / name) == f"{advise(losses)}\n"


def test_label_smoothing_moves_the_threshold(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    floor = smallest_loss(0.1, classes=10)
    np.save(tmp_path / "a.npy", np.full(10, floor + 0.01))
    options = ("--label-smoothing", "0.1", "--classes", "10")
    expected = advise(np.full(10, floor + 0.01), learned=Probability(0.9, floor=floor))
    assert say(capsys, tmp_path / "a.npy", *options) == f"{expected}\n"
    assert "give both" in error_of(capsys, tmp_path / "a.npy", *options[:2])
    assert "give both" in error_of(capsys, tmp_path / "a.npy", *options[2:])


def test_as_json_it_is_the_advice(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    losses = np.array([0.01] * 40 + [1.0] * 59 + [np.inf])
    np.save(tmp_path / "a.npy", losses)
    told = json.loads(say(capsys, tmp_path / "a.npy", "--json"))
    advice = advise(losses)
    assert told == json.loads(json.dumps(advice.as_dict(), allow_nan=False))
    assert (told["samples"], told["seen"], told["learned"]) == (100, 99, 0.4)
    assert told["suggestions"] == list(advice.suggestions)
    assert told["learned_at"]["0.9"] == 0.4
    assert told["quantiles"]["0.5"] == 1.0
    assert told["age"] is None
    np.save(tmp_path / "a.npy", np.full(3, np.inf))
    assert json.loads(say(capsys, tmp_path / "a.npy", "--json"))["seen"] == 0


def test_a_folder_of_runs_says_the_share_of_each_epoch(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path, [full(90.0)], learned=0.4)
    write(tmp_path, [run(90.0)], learned=0.05)
    out = " ".join(say(capsys, tmp_path).split())
    assert "Full data" in out
    assert "OrderDP 40 %" in out
    assert "1: 40 %, 2: 40 %, 3: 40 % 36 %" in out
    assert "1: 5 %, 2: 5 %, 3: 5 % Savings" in out
    assert "beyond that you pay as with fewer epochs" in out
    assert "Where less than 10 % are learned: Pruning by loss has next to nothing to leave out yet" in out
    assert "The shares say nothing about accuracy" in out
    told = json.loads(say(capsys, tmp_path, "--json", "--refresh", "0.5"))
    assert [(each["label"], each["learned"], each["saving"]) for each in told["runs"]] == [
        ("Full data", 0.4, 0.2),
        ("OrderDP 40 %", 0.05, 0.025),
    ]
    assert [each["epoch"] for each in told["runs"][0]["epochs"]] == [1, 2, 3]
    assert {each["learned"] for each in told["runs"][0]["epochs"]} == {0.4}


def test_records_without_shares_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "old", [full(90.0)])
    assert "an earlier version" in error_of(capsys, tmp_path / "old")
    write(tmp_path / "some", [full(90.0)], learned=0.4)
    write(tmp_path / "some", [run(90.0)])
    out = " ".join(say(capsys, tmp_path / "some").split())
    assert "3: 40 % 36 %" in out
    assert "not recorded" in out
    assert "nothing to leave out" not in out
    assert "OrderDP 40 %, seed 0: its records hold no learned share" in out
    write(tmp_path / "begun", [dataclasses.replace(full(90.0), summary=None)], epochs=0)
    assert "no epoch has come to its end" in error_of(capsys, tmp_path / "begun")


def test_what_needs_losses_is_refused_of_records(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path, [full(90.0)], learned=0.4)
    for options in (("--learned", "0.8"), ("--label-smoothing", "0.1", "--classes", "10")):
        assert "records hold fractions, not losses" in error_of(capsys, tmp_path, *options)


def test_a_path_that_holds_no_losses_is_refused_with_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert "there is no file or folder" in error_of(capsys, tmp_path / "nowhere.pt")
    assert "no records in" in error_of(capsys, tmp_path)
    (tmp_path / "junk.pt").write_bytes(b"junk")
    assert "is not a readable checkpoint" in error_of(capsys, tmp_path / "junk.pt")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    assert "cannot be read" in error_of(capsys, tmp_path / "junk.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object))
    assert "cannot be read" in error_of(capsys, tmp_path / "objects.npy")
    np.savez(tmp_path / "several.npz", a=np.ones(2), b=np.ones(2))
    assert "an array 'losses'" in error_of(capsys, tmp_path / "several.npz")
    save_checkpoint(tmp_path / "model.pt", {"model": {"weight": torch.zeros(3)}})
    assert "holds no state of a Pruner" in error_of(capsys, tmp_path / "model.pt")
    state = trained(10, 5).state_dict()
    save_checkpoint(tmp_path / "two.pt", {"a": state, "b": state})
    assert "holds the states of 2 pruners" in error_of(capsys, tmp_path / "two.pt")
    save_checkpoint(tmp_path / "new.pt", {"pruner": {**state, "version": 99}})
    assert "version 99" in error_of(capsys, tmp_path / "new.pt")
    save_checkpoint(tmp_path / "damaged.pt", {"pruner": {**state, "table": {}}})
    assert "damaged" in error_of(capsys, tmp_path / "damaged.pt")


def test_parts_of_several_processes_are_refused_with_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    state = trained(10, 5).state_dict()
    save_checkpoint(tmp_path / "part.pt", {"pruner": {**state, "group": {"rank": 0, "world_size": 2}}})
    assert "pruner.sync()" in error_of(capsys, tmp_path / "part.pt")
    sharded = Pruner(OrderDP(0.4), 10, table="sharded")
    sharded.observe(torch.arange(10), torch.full((10,), 0.01))
    assert advise(sharded).learned == 1
    state = sharded.state_dict()
    save_checkpoint(tmp_path / "whole.pt", {"pruner": state})
    assert "100 % of 10 samples" in say(capsys, tmp_path / "whole.pt")
    state["timeline"]["shard"]["world_size"] = 4
    save_checkpoint(tmp_path / "shard.pt", {"pruner": state})
    assert "one of 4 parts" in error_of(capsys, tmp_path / "shard.pt")


def test_help_loads_neither_torch_nor_numpy() -> None:
    code = """
import sys
from orderdp.cli import main
try: main(["advise", "--help"])
except SystemExit: pass
print("torch" in sys.modules, "numpy" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split()[-2:] == ["False", "False"]
