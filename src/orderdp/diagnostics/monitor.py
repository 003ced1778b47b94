"""Diagnostics: watches a training through its pruner, and the risk that its rule minimizes."""

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
from orderdp.diagnostics.kept_sets import shared
from orderdp.diagnostics.usage import Ages, score_ages, usage_summary
from orderdp.errors import ConfigError
from orderdp.policies import RS2, DynamicRandom, EpsilonGreedy, FullData, OrderDP, Scheduled
from orderdp.policy import Context, Policy
from orderdp.pruner import Pruner
from orderdp.theory import Mixed, RankRule, Top, bias_terms, surrogate_loss

__all__ = ["Design", "Diagnostics", "Risk", "design_of", "surrogate_risk"]


class Design(NamedTuple):
    """A policy in the words of the theory: the size of its pool, and which positions of it are kept."""

    s: int
    rule: RankRule


class Risk(NamedTuple):
    """The risk of the losses at hand.

    Attributes:
        surrogate: What the rule's mean loss is on average over draws.
        mean: The mean of all losses.
        bias: By how much the surrogate exceeds the mean: Q_n of Theorem 3.
        bound: Theorem 3's bias term, for the top of a pool; None for other rules.
    """

    surrogate: float
    mean: float
    bias: float
    bound: float | None


def design_of(policy: Policy, context: Context) -> Design | None:
    """The pool and the rule of a policy in an epoch; None for policies that are not of the family.

    Of the family are those that draw uniformly, `OrderDP` with one draw an epoch, and `EpsilonGreedy`, whose pool is
    everything. With weights that undo the rule the risk is that of all data.
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
    """The surrogate risk of the scores, and its bias.

    Only seen samples count, as if they were all there are: early in training that is a part of the data. Scores are
    last-seen losses, so this is what the rule believes; where they are old, the truth may differ. Under `EpsilonGreedy`
    they are exponential averages of the losses seen, and so is the risk.

    Args:
        policy: Who chooses.
        scores: A score for each sample, infinite for the unseen: ``pruner.scores``.
        context: Of the epoch; how many samples there are is taken from the scores.

    Returns:
        None where nothing was seen, or the policy has no surrogate risk (`design_of`).
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
    except ConfigError:  # too few have been seen for this ratio
        return None
    mean = float(losses.mean())
    bound = bias_terms(losses, design.s, design.rule.q).bound if isinstance(design.rule, Top) else None
    return Risk(surrogate, mean, surrogate - mean, bound)


class Diagnostics:
    """Watches a training.

    ::

        watch = Diagnostics(pruner, model)
        for epoch in range(epochs):
            for index, (x, y) in loader:
                loss = pruner.update(index, criterion(model(x), y))
                optimizer.zero_grad(); loss.backward()
                watch.step()
                optimizer.step()
            print(watch.epoch())

    Nothing it does changes the training. A step computes one number and leaves it on the device; an epoch reads them
    and looks at each sample once. What costs more has to be asked for: `full_gradient_cosine`.

    In a process group, call ``pruner.sync()`` before `epoch`, or it knows this process's share only. With
    ``table="sharded"`` everything is of the samples this process owns, and there are no ages.

    Args:
        pruner: Whose.
        model: Whose gradients; None to do without.
        risk: Whether epochs have the surrogate risk of the scores and its bias. Sorts the scores.

    Attributes:
        norms: The gradient norms of the steps since the last `epoch`.
        history: What `epoch` has returned so far.
    """

    def __init__(self, pruner: Pruner, model: nn.Module | None = None, *, risk: bool = True) -> None:
        self.norms = GradientNorms()
        self.history: list[dict[str, float | None]] = []
        self._pruner = pruner
        self._model = model
        self._risk = risk
        self._usage: torch.Tensor | None = pruner.usage  # at the end of the epoch before
        self._previous: np.ndarray | None = None  # what that epoch kept, as a mask

    def step(self, scale: torch.Tensor | float = 1.0) -> None:
        """Notes the norm of the gradients. After ``backward()``, before ``optimizer.step()``.

        Args:
            scale: What the loss was multiplied by, in mixed precision: ``scaler.scale(torch.ones((), device=...))``,
                which, unlike ``scaler.get_scale()``, nothing has to wait for.
        """
        if self._model is None:
            raise ConfigError("gradients are a model's. Give Diagnostics(pruner, model).")
        self.norms.add(gradient_norm(self._model.parameters()) / scale)

    def epoch(self, metric: SupportsFloat | None = None) -> dict[str, float | None]:
        """What the epoch that has just ended did.

        Args:
            metric: The test accuracy, any number or a tensor of one, to be kept with it for `accuracy_correlation`,
                `time_to_accuracy`, `stability`.

        Returns:
            epoch: epochs done. samples: trained on in this epoch, each counted once. jaccard: similarity with what the
            epoch before kept, None in the first. coverage, usage_min, usage_mean, usage_max: how often samples were
            trained on so far. age_mean, age_median, age_p95: epochs since the seen scores were refreshed, 1 for those
            of this epoch; None with a sharded table, which keeps none. unseen: share of samples without a score.
            gradient_norm, gradient_norm_std: mean and standard deviation over the steps, where `step` was called.
            surrogate_risk, bias, bias_bound: of the seen scores, where the policy has such a risk.
        """
        found = self.measure()
        if metric is not None:
            found["metric"] = float(metric)
        self.advance()
        self.history.append(found)
        return found

    def measure(self) -> dict[str, float | None]:
        """What `epoch` would return, and nothing else."""
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
        """Goes on to the next epoch. `epoch` does so by itself."""
        counts = self._pruner.usage
        self._previous, self._usage = self._used_since(counts), counts
        self.norms.clear()

    def kept(self) -> np.ndarray | None:
        """What has been trained on since the last `epoch`; None where its beginning was not seen."""
        mask = self._used_since(self._pruner.usage)
        return None if mask is None else np.flatnonzero(mask)

    def _used_since(self, counts: torch.Tensor) -> np.ndarray | None:
        """Which samples were trained on since the last `epoch`, as a mask."""
        return None if self._usage is None else (counts > self._usage).numpy()

    def _ages(self) -> Ages:
        try:
            return score_ages(self._pruner.last_seen_epoch, self._pruner.epoch)
        except ConfigError:  # a sharded table keeps no epochs, to be small
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
        """The cosine between the pruned epoch's gradient and that of all data, at the present weights.

        Costly: a forward and a backward pass over all samples, and one over those kept. The result says how many that
        were and how long it took. Between epochs the pruned epoch is the one that would come next: see
        `Pruner.preview`.

        Args:
            dataset: The data set the pruner was made for.
            losses: Called with the model and a batch; one loss for each sample.
            batch_size: Samples a batch; that of training where the model has BatchNorm.
            **dataloader_kwargs: Anything else a DataLoader takes, except an order.
        """
        if self._model is None:
            raise ConfigError("gradients are a model's. Give Diagnostics(pruner, model).")
        options = {**dataloader_kwargs, "collate_fn": IndexedCollate(dataloader_kwargs.get("collate_fn"))}
        options.setdefault("generator", torch.Generator())

        def batches(indices: np.ndarray) -> Iterator[tuple[torch.Tensor, Any]]:
            indices = without_lone_last(indices, batch_size)
            cut = [part.tolist() for part in np.split(indices, range(batch_size, len(indices), batch_size))]
            return iter(DataLoader(Indexed(dataset), batch_sampler=cut, **options))

        pruner = self._pruner
        return gradient_cosine(self._model, pruner.preview(), pruner.n, losses, batches, seed=pruner.seed)

    def state_dict(self) -> dict[str, Any]:
        """Tensors, for a checkpoint at any moment. The history is not in it."""
        return {
            **self.norms.state_dict(),
            "usage": self._usage,
            "previous": None if self._previous is None else torch.from_numpy(self._previous),
        }

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Puts back what `state_dict` gave; None where there was none, and so the open epoch's beginning is unknown."""
        self._usage, self._previous = None, None
        self.norms.clear()
        if state is not None:
            self.norms.load_state_dict(state)
            self._usage = state["usage"]
            self._previous = None if state["previous"] is None else state["previous"].numpy()
