"""Diagnostics: observes a training through its pruner, and computes the risk that its rule minimizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from orderdp.dataset import Indexed, IndexedCollate
from orderdp.diagnostics.gradients import (
    GradientCosine,
    GradientNorms,
    LossFunction,
    gradient_cosine,
    gradient_norm,
    without_lone_last,
)
from orderdp.diagnostics.kept_sets import Ages, score_ages, shared, usage_summary
from orderdp.errors import ConfigError
from orderdp.policies import RS2, DynamicRandom, EpsilonGreedy, FullData, OrderDP, Scheduled
from orderdp.policy import Context, Policy
from orderdp.pruner import Pruner
from orderdp.theory import Mixed, RankRule, Top, bias_terms, surrogate_loss

__all__ = ["Design", "Diagnostics", "Risk", "design_of", "surrogate_risk"]


class Design(NamedTuple):
    """A policy in terms of the theory: the size of its pool, and the rank rule that keeps positions of it."""

    s: int
    rule: RankRule


class Risk(NamedTuple):
    """Risk of the current losses.

    Attributes:
        surrogate: Expected mean loss of the kept samples.
        mean: Mean of all losses.
        bias: Difference of surrogate and mean: Q_n of Theorem 3.
        bound: Bias term of Theorem 3, for the top of a pool; None for other rules.
    """

    surrogate: float
    mean: float
    bias: float
    bound: float | None


def design_of(policy: Policy, context: Context) -> Design | None:
    """Pool and rule of a policy in an epoch; None for policies without such a design.

    Policies with a design are those that draw uniformly, `OrderDP` with one draw per epoch, and `EpsilonGreedy`, whose
    pool is the whole data set. With ``unbiased=True`` the risk is that of all data.

    Args:
        policy: The policy.
        context: The epoch's context.
    """
    n = context.n
    while isinstance(policy, Scheduled):
        policy = policy.at(context)
    if isinstance(policy, FullData | DynamicRandom | RS2):
        kept = policy.size(n, context)
        return Design(kept, Top(kept))
    if isinstance(policy, EpsilonGreedy):
        kept = policy.size(n, context)
        at_random = round(policy.epsilon * kept)
        return Design(n, Mixed(kept - at_random, at_random))
    if isinstance(policy, OrderDP) and policy.every == "epoch":
        s, q = policy.sizes(n)
        return Design(n, Top(n)) if policy.unbiased else Design(s, policy.rule.positions(s, q, context))
    return None


def surrogate_risk(policy: Policy, scores: Any, context: Context) -> Risk | None:
    """Surrogate risk of the scores, and its bias.

    Only seen samples count, as if they were the whole data set: early in training that is a part of the data. Scores
    are last-seen losses, so this is the risk as the rule sees it; with old scores the true risk may differ. Under
    `EpsilonGreedy` the scores are exponential averages of the losses seen, and so is the risk.

    Args:
        policy: The policy.
        scores: One score per sample, infinite for unseen samples: ``pruner.scores``.
        context: The epoch's context; the number of samples is taken from the scores.

    Returns:
        None if nothing was seen, or if the policy has no surrogate risk (see `design_of`).
    """
    values = np.asarray(scores, dtype=np.float64)
    losses = values[np.isfinite(values)]
    if len(losses) == 0:
        return None
    try:
        design = design_of(policy, Context(len(losses), context.epoch, context.seed, context.epochs))
        if design is None:
            return None
        surrogate = surrogate_loss(losses, design.s, design.rule)
    except ConfigError:  # too few samples have been seen for this ratio
        return None
    mean = float(losses.mean())
    bound = bias_terms(losses, design.s, design.rule.q).bound if isinstance(design.rule, Top) else None
    return Risk(surrogate, mean, surrogate - mean, bound)


class Diagnostics:
    """Observe a training.

    ::

        watch = Diagnostics(pruner, model)
        for epoch in range(epochs):
            for index, (x, y) in loader:
                loss = pruner.update(index, criterion(model(x), y))
                optimizer.zero_grad(); loss.backward()
                watch.step()
                optimizer.step()
            print(watch.epoch())

    Diagnostics does not change the training. A step computes one number and leaves it on the device; an epoch reads
    these numbers and reads each sample's row once. The expensive `full_gradient_cosine` runs only if it is called.

    In a process group, call ``pruner.sync()`` before `epoch`; otherwise it covers the samples of this rank only. With
    ``table="sharded"`` all values are over the samples that this rank holds, and there are no ages.

    Args:
        pruner: The pruner to observe.
        model: The model whose gradients are measured, or None.
        risk: Whether to compute the surrogate risk of the scores and its bias per epoch. Sorts the scores.

    Attributes:
        norms: Gradient norms of the steps since the last `epoch`.
        history: Results of `epoch` so far.
    """

    def __init__(self, pruner: Pruner, model: nn.Module | None = None, *, risk: bool = True) -> None:
        self.norms = GradientNorms()
        self.history: list[dict[str, float | None]] = []
        self._pruner = pruner
        self._model = model
        self._risk = risk
        self._usage: torch.Tensor | None = pruner.usage  # at the end of the previous epoch
        self._previous: np.ndarray | None = None  # mask of the samples that it kept

    def step(self, scale: torch.Tensor | float = 1.0) -> None:
        """Store the norm of the gradients. Call it after ``backward()`` and before ``optimizer.step()``.

        Args:
            scale: Loss scale of mixed precision: ``scaler.scale(torch.ones((), device=...))``, which, unlike
                ``scaler.get_scale()``, does not wait for the device.
        """
        if self._model is None:
            raise ConfigError("gradients need a model. Use Diagnostics(pruner, model).")
        self.norms.add(gradient_norm(self._model.parameters()) / scale)

    def epoch(self, metric: SupportsFloat | None = None) -> dict[str, float | None]:
        """Return the diagnostics of the epoch that has just ended.

        Args:
            metric: Test accuracy, or another number or one-element tensor, stored for `accuracy_correlation`,
                `time_to_accuracy` and `stability`.

        Returns:
            epoch: finished epochs. samples: samples trained on in this epoch, each counted once. jaccard: similarity
            with the set kept in the previous epoch, None in the first. coverage, usage_min, usage_mean, usage_max: how
            often samples were trained on so far. age_mean, age_median, age_p95: epochs since the seen scores were
            refreshed, 1 for those of this epoch; None with a sharded table, which does not store them. unseen: fraction
            of samples without a score. gradient_norm, gradient_norm_std: mean and standard deviation over the steps, if
            `step` was called. surrogate_risk, bias, bias_bound: of the seen scores, if the policy has such a risk.
        """
        found = self.measure()
        if metric is not None:
            found["metric"] = float(metric)
        self.advance()
        self.history.append(found)
        return found

    def measure(self) -> dict[str, float | None]:
        """Return what `epoch` would return, without any effect."""
        counts = self._pruner.usage
        kept, usage = self._used_since(counts), usage_summary(counts)
        ages = self._ages()
        found: dict[str, float | None] = {
            "epoch": self._pruner.epoch,
            "samples": None if kept is None else int(kept.sum()),
            "jaccard": None if kept is None or self._previous is None else shared(self._previous, kept),
            "coverage": usage.coverage,
            "usage_min": usage.fewest,
            "usage_mean": usage.mean,
            "usage_max": usage.most,
            **{f"age_{name}": getattr(ages, name) for name in ("mean", "median", "p95")},
            "unseen": ages.unseen,
        }
        if len(self.norms):
            found["gradient_norm"], found["gradient_norm_std"] = self.norms.summary()
        if self._risk:
            found.update(self._measured_risk())
        return found

    def advance(self) -> None:
        """Advance to the next epoch. `epoch` calls it."""
        counts = self._pruner.usage
        self._previous, self._usage = self._used_since(counts), counts
        self.norms.clear()

    def kept(self) -> np.ndarray | None:
        """Samples trained on since the last `epoch`; None if the start of the epoch was not observed."""
        mask = self._used_since(self._pruner.usage)
        return None if mask is None else np.flatnonzero(mask)

    def _used_since(self, counts: torch.Tensor) -> np.ndarray | None:
        """Mask of the samples trained on since the last `epoch`."""
        return None if self._usage is None else (counts > self._usage).numpy()

    def _ages(self) -> Ages:
        try:
            return score_ages(self._pruner.last_seen_epoch, self._pruner.epoch)
        except ConfigError:  # a sharded table does not store epochs, to save memory
            return Ages(None, None, None, float(self._pruner.scores.isinf().double().mean()))

    def _measured_risk(self) -> dict[str, float | None]:
        pruner = self._pruner
        last = pruner.epoch if pruner.epochs is None else min(pruner.epoch, pruner.epochs - 1)
        risk = surrogate_risk(pruner.policy, pruner.scores, Context(pruner.n, last, pruner.seed, pruner.epochs))
        if risk is None:
            return {}
        return {"surrogate_risk": risk.surrogate, "bias": risk.bias, "bias_bound": risk.bound}

    def full_gradient_cosine(
        self, dataset: Any, losses: LossFunction, *, batch_size: int = 256, **dataloader_kwargs: Any
    ) -> GradientCosine:
        """Cosine between the gradient of the pruned epoch and that of all data, at the current weights.

        Expensive: one forward and backward pass over all samples, and one over those kept. The result contains the
        number of samples and the time. Between epochs, the pruned epoch is the next one: see `Pruner.preview`.

        Args:
            dataset: The data set the pruner was made for.
            losses: Called with the model and a batch; returns one loss per sample.
            batch_size: Samples per batch; use that of training if the model has BatchNorm.
            **dataloader_kwargs: Other arguments of the DataLoader, except for the order.
        """
        if self._model is None:
            raise ConfigError("gradients need a model. Use Diagnostics(pruner, model).")
        options = {**dataloader_kwargs, "collate_fn": IndexedCollate(dataloader_kwargs.get("collate_fn"))}
        options.setdefault("generator", torch.Generator())

        def batches(indices: np.ndarray) -> Iterator[tuple[torch.Tensor, Any]]:
            indices = without_lone_last(indices, batch_size)
            cut = [part.tolist() for part in np.split(indices, range(batch_size, len(indices), batch_size))]
            return iter(DataLoader(Indexed(dataset), batch_sampler=cut, **options))

        pruner = self._pruner
        return gradient_cosine(self._model, pruner.preview(), pruner.n, losses, batches, seed=pruner.seed)

    def state_dict(self) -> dict[str, Any]:
        """Return tensors, for a checkpoint at any time. The history is not included."""
        return {
            **self.norms.state_dict(),
            "usage": self._usage,
            "previous": None if self._previous is None else torch.from_numpy(self._previous),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the result of `state_dict`.

        Args:
            state: Result of `state_dict`; None without one, so that the start of the open epoch is unknown.
        """
        self._usage, self._previous = None, None
        self.norms.clear()
        if state is not None:
            self.norms.load_state_dict(state)
            self._usage = state["usage"]
            self._previous = None if state["previous"] is None else state["previous"].numpy()
