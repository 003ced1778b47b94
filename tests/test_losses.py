"""From the loss a task has to one number a sample."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from orderdp import OrderDP, Pruner, last_layer_gradient_norm, per_sample, top_mean
from orderdp.errors import ConfigError, FeedbackError
from orderdp.policies import UCB, EpsilonGreedy, Kakurenbo, RePB


def test_per_sample_averages_everything_after_the_batch_dimension() -> None:
    losses = torch.rand(3, 4, 5)
    assert torch.allclose(per_sample(losses), torch.stack([x.mean() for x in losses]))
    flat = torch.rand(3)
    assert per_sample(flat) is flat


def test_per_sample_leaves_out_what_is_masked_even_if_it_is_nan() -> None:
    losses = torch.tensor([[1.0, float("nan"), 3.0], [float("inf"), 4.0, 6.0], [1.0, 1.0, 1.0]], requires_grad=True)
    mask = torch.tensor([[1, 0, 1], [0, 1, 1], [0, 0, 0]])
    reduced = per_sample(losses, mask)
    assert reduced.tolist() == [2.0, 5.0, 0.0]
    reduced.sum().backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [[0.5, 0.0, 0.5], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0]]


def test_a_mask_may_broadcast() -> None:
    losses = torch.arange(12.0).reshape(2, 2, 3)
    assert per_sample(losses, torch.tensor([[[True], [False]]])).tolist() == [1.0, 7.0]
    with pytest.raises(FeedbackError, match="mask must broadcast"):
        per_sample(losses, torch.ones(5))


def test_packed_sequences_are_averaged_one_by_one() -> None:
    losses = torch.tensor([[1.0, 3.0, 5.0, 100.0], [7.0, 7.0, 8.0, 10.0]], requires_grad=True)
    segments = torch.tensor([[0, 0, 1, -1], [1, 1, 2, 2]])
    reduced = per_sample(losses, segments=segments)
    assert torch.allclose(reduced, torch.tensor([2.0, 19 / 3, 9.0]))
    assert torch.equal(per_sample(losses, segments=segments, count=3), reduced)
    reduced[1].backward()
    assert losses.grad is not None
    third = 1 / 3
    assert torch.allclose(losses.grad, torch.tensor([[0, 0, third, 0], [third, third, 0, 0]]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_segments_may_be_whole_numbers_of_any_size(dtype: torch.dtype) -> None:
    segments = torch.tensor([[0, 0, 1]], dtype=dtype)
    assert per_sample(torch.tensor([[1.0, 3.0, 5.0]]), segments=segments).tolist() == [2.0, 5.0]


def test_packed_sequences_with_a_mask_and_one_that_is_empty() -> None:
    losses = torch.tensor([1.0, 3.0, 5.0])
    reduced = per_sample(losses, mask=torch.tensor([1, 0, 1]), segments=torch.tensor([0, 0, 2]), count=4)
    assert reduced.tolist() == [1.0, 0.0, 5.0, 0.0]
    with pytest.raises(FeedbackError, match=r"segments must be below count=2, .*, got 2"):
        per_sample(losses, segments=torch.tensor([0, 0, 2]), count=2)
    with pytest.raises(FeedbackError, match="segments must be integers"):
        per_sample(losses, segments=torch.tensor([0, 0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_long_sequences_in_half_precision_are_averaged_as_in_full(dtype: torch.dtype) -> None:
    """A count in bfloat16 stops at 256, and a sum in float16 at 65504."""
    whole = torch.rand(2, 4096, generator=torch.Generator().manual_seed(0)) * 60
    losses = whole.to(dtype).requires_grad_()
    expected = losses.detach().float().mean(1)
    masked = per_sample(losses, mask=torch.ones(2, 4096))
    packed = per_sample(losses.reshape(1, -1), segments=torch.arange(2).repeat_interleave(4096)[None], count=2)
    for reduced in (masked, packed):
        assert reduced.dtype is dtype
        assert reduced.float().tolist() == pytest.approx(expected.tolist(), rel=0.01)
        (gradient,) = torch.autograd.grad(reduced.sum(), losses, retain_graph=True)
        assert gradient.float().unique().tolist() == pytest.approx([1 / 4096], rel=0.01)


def test_a_sample_of_nothing_has_loss_0() -> None:
    assert per_sample(torch.empty(2, 0)).tolist() == [0.0, 0.0]
    assert per_sample(torch.empty(2, 3, 0), mask=torch.empty(2, 1, 0)).tolist() == [0.0, 0.0]
    assert per_sample(torch.empty(0, 3)).tolist() == []


def test_per_sample_needs_a_batch_dimension() -> None:
    with pytest.raises(FeedbackError, match='reduction="none"'):
        per_sample(torch.tensor(1.0))


def test_top_mean_is_the_mean_of_the_largest_and_moves_only_them() -> None:
    losses = torch.tensor([1.0, 9.0, 4.0, 7.0, 2.0], requires_grad=True)
    top = top_mean(losses, q=2)
    assert top.item() == 8.0
    top.backward()
    assert losses.grad is not None
    assert losses.grad.tolist() == [0.0, 0.5, 0.0, 0.5, 0.0]
    assert top_mean(losses, exploitation=0.6).item() == pytest.approx(20 / 3)


def test_top_mean_never_takes_a_nan_for_the_hardest() -> None:
    assert top_mean(torch.tensor([1.0, float("nan"), 3.0]), q=2).item() == 2.0


@pytest.mark.parametrize("arguments", [{}, {"q": 2, "exploitation": 0.5}, {"q": 0}, {"q": 4}, {"exploitation": 1.2}])
def test_top_mean_refuses_what_it_cannot_do(arguments: dict) -> None:
    with pytest.raises(ConfigError):
        top_mean(torch.rand(3), **arguments)
    with pytest.raises(FeedbackError, match="one number for each candidate"):
        top_mean(torch.rand(3, 2), q=1)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("soft", [False, True])
def test_the_last_layer_gradient_norm_is_that_of_autograd(smoothing: float, soft: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(5, 4)
    features = torch.randn(6, 5, generator=generator)
    targets = torch.randint(0, 4, (6,), generator=generator)
    if soft:
        targets = torch.rand(6, 4, generator=generator).softmax(1)
    norms = last_layer_gradient_norm(layer(features), targets, features, label_smoothing=smoothing)
    for i in range(6):
        layer.zero_grad()
        F.cross_entropy(layer(features[i : i + 1]), targets[i : i + 1], label_smoothing=smoothing).backward()
        assert layer.weight.grad is not None
        assert layer.bias.grad is not None
        expected = (layer.weight.grad.square().sum() + layer.bias.grad.square().sum()).sqrt()
        assert torch.allclose(norms[i], expected, atol=1e-6)
    assert not norms.requires_grad


def test_without_features_it_is_the_norm_of_softmax_minus_target() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    norms = last_layer_gradient_norm(logits, torch.tensor([0, 1]))
    assert torch.allclose(norms, (logits.softmax(1) - torch.eye(2)).norm(dim=1))
    with pytest.raises(FeedbackError, match="logits must be"):
        last_layer_gradient_norm(torch.rand(3), torch.tensor([0]))


def test_a_batch_loss_moves_each_score_towards_it() -> None:
    pruner = Pruner(OrderDP(0.4), 5)
    loss = torch.tensor(4.0, requires_grad=True)
    result = pruner.update(torch.tensor([0, 3]), loss, reduced=True)
    assert result.item() == 4.0
    result.backward()
    assert loss.grad == 1.0
    pruner.update(torch.tensor([3, 1]), torch.tensor(2.0), reduced=True)
    scores = pruner.scores.tolist()
    assert scores[0] == 4.0
    assert scores[1] == 2.0
    assert scores[3] == pytest.approx(0.8 * 4.0 + 0.2 * 2.0)
    assert scores[2] == float("inf")


def test_a_batch_loss_is_averaged_before_a_policy_makes_more_of_it() -> None:
    told = {"correct": torch.tensor([True, False]), "confidence": torch.tensor([0.9, 0.2])}
    pruner = Pruner(Kakurenbo(0.4), 5)
    for loss in (4.0, 2.0):
        pruner.update(torch.tensor([0, 3]), torch.tensor(loss), reduced=True, **told)
    assert pruner.scores[[0, 3]].tolist() == pytest.approx([3.6, 3.6])


def test_a_batch_loss_is_averaged_once_by_a_policy_with_an_average_of_its_own() -> None:
    for policy in (EpsilonGreedy(0.4), UCB(0.4)):
        one, other = Pruner(policy, 5), Pruner(policy, 5)
        for loss in (4.0, 2.0):
            one.update(torch.tensor([0, 3]), torch.tensor(loss), reduced=True)
            other.update(torch.tensor([0, 3]), torch.tensor([loss, loss]))
        assert one.scores.tolist() == other.scores.tolist()


@pytest.mark.parametrize("loss", [0.05, 0.1, 0.36])
def test_samples_of_one_batch_loss_are_all_at_its_mean(loss: float) -> None:
    assert torch.full((20,), loss).mean() > torch.tensor(loss)  # by rounding
    pruner = Pruner(RePB(0.9), 1000, epochs=2)
    for batch in pruner.batch_sampler(20):
        pruner.update(torch.tensor(batch), torch.tensor(loss), reduced=True)
    assert len(pruner.preview()) == 1000


def test_separate_scores_are_remembered_and_the_losses_trained_on() -> None:
    pruner = Pruner(OrderDP(0.4), 5)
    result = pruner.update(torch.tensor([0, 3]), torch.tensor([1.0, 3.0]), scores=torch.tensor([10.0, 20.0]))
    assert result.item() == 2.0
    assert pruner.scores[[0, 3]].tolist() == [10.0, 20.0]
