"""Diagnostics of a training: norms and cosines of its gradients, and the risk that its rule minimizes."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, SupportsFloat

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from orderdp._draw import generator
from orderdp._validation import is_count
from orderdp.dataset import Indexed, IndexedCollate
from orderdp.diagnostics.kept_sets import Ages, score_ages, shared, usage_summary
from orderdp.errors import ConfigError, FeedbackError
from orderdp.policies import RS2, DynamicRandom, EpsilonGreedy, FullData, OrderDP, Scheduled
from orderdp.policy import Context, Policy, Selection
from orderdp.pruner import Preview, Pruner
from orderdp.theory import Mixed, RankRule, Top, bias_terms, surrogate_loss

__all__ = [
    "BatchMaker",
    "Design",
    "Diagnostics",
    "GradientCosine",
    "GradientNorms",
    "LossFunction",
    "Risk",
    "as_in_training",
    "design_of",
    "gradient_cosine",
    "gradient_norm",
    "rolling_spread",
    "surrogate_risk",
    "without_lone_last",
]


@contextmanager
def as_in_training(model: nn.Module) -> Iterator[None]:
    """Run the model as in a training step inside the context; restore its state afterwards.

    Restores the modes of all modules, their buffers (the running statistics of BatchNorm) and the global generators
    (dropout, augmentation). The code inside the context must not change parameters or their gradients.

    Args:
        model: The model, which is put in training mode.
    """
    modes = {module: module.training for module in model.modules()}
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    devices = sorted({each.device for each in model.parameters() if each.device.type == "cuda"}, key=str)
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=devices):
            model.train()
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        with torch.no_grad():
            for module, name, buffer, value in buffers:
                module._buffers[name] = buffer.copy_(value)
        for module, mode in modes.items():
            module.training = mode


_CHUNK = 1024


@torch.no_grad()
def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all gradients together, on their device, without synchronization.

    Args:
        parameters: Parameters whose ``.grad`` is measured; those without a gradient are skipped.
    """
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        raise FeedbackError("there is no gradient to measure. Measure after backward() and before zero_grad().")
    dense = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    norms = [torch.linalg.vector_norm(each, dtype=torch.float32) for each in dense]
    home = norms[0].device
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack([norm.to(home, non_blocking=True) for norm in norms]))
    return whole


class GradientNorms:
    """Gradient norms of many steps. They stay on their device until they are read."""

    def __init__(self) -> None:
        self._restored = torch.empty(0)  # norms from a checkpoint, on the host
        self._chunks: list[torch.Tensor] = []
        self._count = 0  # norms in the chunks

    def __len__(self) -> int:
        return len(self._restored) + self._count

    @torch.no_grad()
    def add(self, norm: torch.Tensor) -> None:
        """Store `norm`, the gradient norm of one step."""
        position = self._count % _CHUNK
        if position == 0:
            self._chunks.append(torch.empty(_CHUNK, dtype=torch.float32, device=norm.device))
        self._chunks[-1].select(0, position).copy_(norm)
        self._count += 1

    def read(self) -> np.ndarray:
        """Return all norms, in order. Waits for the device."""
        return self._all().double().numpy()

    def _all(self) -> torch.Tensor:
        chunks = [chunk.cpu() for chunk in self._chunks]
        return torch.cat([self._restored, *chunks])[: len(self)]

    def summary(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation over the steps, without steps that mixed precision made infinite."""
        norms = self.read()
        norms = norms[np.isfinite(norms)]
        mean = float(norms.mean()) if len(norms) else None
        return mean, float(norms.std(ddof=1)) if len(norms) > 1 else None

    def clear(self) -> None:
        """Delete all norms."""
        self._restored, self._chunks, self._count = torch.empty(0), [], 0

    def state_dict(self) -> dict[str, Any]:
        """Return a tensor, for a checkpoint."""
        return {"norms": self._all().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore `state`, a result of `state_dict`."""
        self.clear()
        self._restored = state["norms"].float().cpu().clone()


def rolling_spread(values: Any, window: int = 50) -> np.ndarray:
    """Standard deviation within each `window` of consecutive values: how unsteady a series is, and when.

    >>> rolling_spread([1.0, 1.0, 3.0, 3.0], window=2).round(3).tolist()
    [0.0, 1.414, 0.0]

    Args:
        values: Norms of steps, or means of epochs.
        window: Number of values per window, at least 2.

    Returns:
        One number per position of the window; empty if there are fewer than `window` values.
    """
    if not is_count(window, least=2):
        raise ConfigError(f"window must be a whole number, at least 2, got {window!r}.")
    series = np.asarray(values, dtype=np.float64)
    if len(series) < window:
        return np.empty(0)
    spread: np.ndarray = np.lib.stride_tricks.sliding_window_view(series, window).std(axis=1, ddof=1)
    return spread


#: Returns the loss of each sample of a batch, with gradients.
LossFunction = Callable[[nn.Module, Any], torch.Tensor]


#: Yields (index, batch) over the given samples, in that order.
BatchMaker = Callable[[np.ndarray], Iterable[tuple[torch.Tensor, Any]]]


class GradientCosine(NamedTuple):
    """Result and cost of `gradient_cosine`.

    Attributes:
        cosine: Cosine between the two gradients; None if one of them is zero or not finite.
        pruned_norm: Norm of the gradient of the pruned epoch's mean loss, with the policy's weights.
        full_norm: Norm of the gradient of the mean loss of all samples.
        samples: Number of samples in the forward and backward passes.
        seconds: Time taken.
    """

    cosine: float | None
    pruned_norm: float
    full_norm: float
    samples: int
    seconds: float


def gradient_cosine(
    model: nn.Module,
    selection: Selection | Preview,
    n: int,
    losses: LossFunction,
    batches: BatchMaker,
    *,
    seed: int = 0,
) -> GradientCosine:
    """Cosine between the gradient of the selection and that of all data, at the model's current weights.

    Costs one forward and backward pass over all `n` samples and one over the selection. Gradients, weights, running
    statistics and generators stay unchanged. Both passes visit the samples in the same random order, so that batches
    are mixed as in training, and are equal if everything is selected.

    Args:
        model: The model. It runs as in training: BatchNorm with batch statistics, dropout on.
        selection: The selection of a pruned epoch, with its weights: ``pruner.preview()``.
        n: Number of samples.
        losses: Called with the model and a batch; returns one loss per sample.
        batches: Called with indices; yields (index, batch) in that order.
        seed: Seed of the order.
    """
    begun = time.perf_counter()
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "the model must have parameters with requires_grad=True, it has none. Unfreeze some, or pass the part of "
            "the model that is trained."
        )
    order = generator(seed, "gradient cosine").permutation(n)
    kept = np.zeros(n, dtype=np.bool_)
    kept[selection.indices] = True
    with as_in_training(model):
        full, n_full = _mean_gradient(model, losses, batches(order), None)
        pruned, n_pruned = _mean_gradient(model, losses, batches(order[kept[order]]), selection.dense_weights(n))
    pruned_norm, full_norm = math.sqrt(_dot(pruned, pruned)), math.sqrt(_dot(full, full))
    both = pruned_norm * full_norm
    cosine = max(-1.0, min(1.0, _dot(pruned, full) / both)) if both and math.isfinite(both) else None
    return GradientCosine(cosine, pruned_norm, full_norm, n_full + n_pruned, time.perf_counter() - begun)


def without_lone_last(indices: np.ndarray, batch_size: int) -> np.ndarray:
    """Drop the last index if it would be a batch by itself, because BatchNorm cannot normalize one sample.

    >>> without_lone_last(np.arange(9), 4).tolist(), len(without_lone_last(np.arange(10), 4))
    ([0, 1, 2, 3, 4, 5, 6, 7], 10)
    """
    return indices[:-1] if len(indices) > 1 < batch_size and len(indices) % batch_size == 1 else indices


def _mean_gradient(
    model: nn.Module, losses: LossFunction, batches: Iterable[tuple[torch.Tensor, Any]], weights: torch.Tensor | None
) -> tuple[list[torch.Tensor], int]:
    """Gradient of the mean of the weighted losses, without writing ``.grad``, and the number of samples."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    total = [torch.zeros_like(parameter, dtype=torch.float32) for parameter in parameters]
    samples = 0
    with torch.enable_grad():
        for index, batch in batches:
            found = losses(model, batch).float()
            if weights is not None:
                found = found * weights[index.cpu()].to(found.device)
            gradients = torch.autograd.grad(found.sum(), parameters, allow_unused=True)
            for so_far, gradient in zip(total, gradients, strict=True):
                if gradient is not None:
                    so_far.add_(gradient)
            samples += len(index)
    return [each.div_(max(1, samples)) for each in total], samples


def _dot(first: list[torch.Tensor], second: list[torch.Tensor]) -> float:
    pairs = zip(first, second, strict=True)
    return sum(float(torch.dot(one.cpu().double().flatten(), two.cpu().double().flatten())) for one, two in pairs)


# -- the monitor -------------------------------------------------------------------------------------------------------


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
