"""Advice: what can be pruned, by the losses stored so far.

It counts the learned samples and bounds by how much leaving them out changes the gradient. It makes no statement about
accuracy.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from orderdp._validation import check_ratio
from orderdp.checkpoint import FORMAT, VERSION, load_checkpoint
from orderdp.errors import ConfigError, DatasetError, StateError
from orderdp.policies.learned import Probability, Threshold, Unlearned, as_threshold, threshold_config
from orderdp.policy import describe
from orderdp.pruner import Pruner
from orderdp.score_table import mean_age
from orderdp.theory.weights import skip_bias_bound

__all__ = [
    "FEW",
    "Advice",
    "StoredLosses",
    "advise",
    "as_percent",
    "little_to_leave_out",
    "refuse_parts",
    "stored_losses",
    "whole_percent",
]


#: Below this fraction of learned samples nothing is suggested.
FEW = 0.1


_NEARLY_ALL = 0.95


_OLD = 2.0  # epochs, on average: most losses are older than the last epoch


_PROBABILITIES = (0.5, 0.8, 0.9, 0.95, 0.99)


_QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)


_AVERAGING = re.compile(r"\b(UCB|EpsilonGreedy)\(")  # policies that store averages of losses in place of the last one


@dataclass(frozen=True)
class StoredLosses:
    """Losses that a training has stored.

    Attributes:
        columns: "score", one loss per sample, infinite if unseen; and the other columns that thresholds read.
        age: Mean age of the losses of seen samples, in epochs; None if unknown.
        policy: The policy that stored them, in one line, or empty.
    """

    columns: Mapping[str, np.ndarray]
    age: float | None = None
    policy: str = ""

    @property
    def n(self) -> int:
        """Number of samples."""
        return len(self["score"])

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.columns:
            raise ConfigError(
                f"this threshold needs the column {name!r} (for RelativeLoss the first losses), which only a pruner "
                "that trains with this threshold stores. Pass the probability of the right class, or LossBelow(...)."
            )
        return self.columns[name]


@dataclass(frozen=True)
class Advice:
    """What can be pruned according to the losses. ``str(advice)`` puts it in words.

    Attributes:
        samples: Number of samples.
        seen: Number of samples with a loss. The others count as not learned.
        learned: Fraction of the samples that is learned.
        rule: When a sample is learned.
        threshold: At or below this loss a sample is learned.
        refresh: Fraction of the learned samples that an epoch still trains on.
        saving: The largest fraction that an epoch can leave out if it leaves out learned samples only:
            (1 - refresh) times the fraction learned.
        gradient_bound: Bound on the expected change of the mean gradient over all samples, in the logits, for these
            losses. None if the rule is not about cross-entropy.
        quantiles: Pairs of a fraction and the loss that this fraction of the seen samples does not exceed.
        learned_at: Pairs of a probability of the right class and the fraction learned under that rule. Empty if the
            rule is not about cross-entropy.
        age: Mean age of the losses, in epochs; None if unknown.
        averaged: Whether the losses are running averages, which some policies store in place of the last loss.
    """

    samples: int
    seen: int
    learned: float
    rule: Threshold
    threshold: float
    refresh: float
    saving: float
    gradient_bound: float | None
    quantiles: tuple[tuple[float, float], ...]
    learned_at: tuple[tuple[float, float], ...]
    age: float | None = None
    averaged: bool = False

    @property
    def suggestions(self) -> tuple[str, ...]:
        """Policies, as code, that leave out about that much and no more; none if few samples are learned."""
        if self.learned < FEW or whole_percent(self.saving) < 1:
            return ()
        given = {"learned": _written(self.rule)} if self.rule != Probability() else {}
        if self.refresh != Unlearned.refresh:  # that of a budget is the same
            given["refresh"] = repr(self.refresh)
        left_out = _left_out(self.saving)
        skipping = _call("Unlearned", f"{left_out / 100:g}", given)
        if not self.refresh:
            return (skipping,)  # a budget needs a refresh, or an epoch could be empty
        return skipping, _call("Budget", f"{(100 - left_out) / 100:g}", given)

    def as_dict(self) -> dict[str, Any]:
        """Return all values, for JSON."""
        try:
            rule = threshold_config(self.rule)
        except ConfigError:
            rule = {"name": repr(self.rule)}
        return {
            "samples": self.samples,
            "seen": self.seen,
            "learned": self.learned,
            "rule": rule,
            "threshold": self.threshold if math.isfinite(self.threshold) else None,
            "refresh": self.refresh,
            "saving": self.saving,
            "gradient_bound": self.gradient_bound,
            "quantiles": {f"{share:g}": loss for share, loss in self.quantiles},
            "learned_at": {f"{probability:g}": share for probability, share in self.learned_at},
            "age": self.age,
            "averaged": self.averaged,
            "suggestions": list(self.suggestions),
        }

    def __str__(self) -> str:
        if not self.seen:
            return f"None of the {self.samples:,} samples has a loss yet. Train for one epoch first."
        parts = [self._counted(), *(self._savings() if self.suggestions else self._nothing()), *self._doubts()]
        parts += ["", *self._numbers()]
        if self.suggestions:
            parts += ["", self._asked_for(), *(f"  {line}" for line in self.suggestions)]
            parts.append("This says nothing about accuracy: `orderdp compare` measures that.")
        return "\n".join(parts)

    def _counted(self) -> str:
        counted = as_percent(self.learned)
        unseen = f" Losses of {self.seen:,} are known; the others count as not learned."
        return (
            f"{counted[0].upper()}{counted[1:]} of {self.samples:,} samples are learned ({self._criterion()})."
            f"{unseen if self.seen < self.samples else ''}"
        )

    def _criterion(self) -> str:
        if isinstance(self.rule, Probability) and not self.rule.floor:
            return f"the right class has probability >= {self.rule.value:g}"
        if not math.isfinite(self.threshold):
            return f"by {self.rule!r}"
        above = self.rule.floor
        smoothed = f", {self.threshold - above:.3g} above the smallest possible loss" if above else ""
        return f"loss at most {self.threshold:.3g}{smoothed}"

    def _savings(self) -> list[str]:
        which = f"{as_percent(1 - self.refresh)} of those" if self.refresh else "those"
        if self.gradient_bound is None:
            bound = "No bound on the gradient is known for such a threshold."
        else:
            most = f"{_rounded_up(self.gradient_bound)}{', on average over draws' if self.refresh else ''}"
            bound = f"Leaving out {which} changes the mean gradient in the logits by at most {most}."
        said = [
            bound,
            f"Up to about {whole_percent(self.saving)} % of an epoch can be saved on learned samples; "
            "larger savings cost what fewer epochs cost.",
            "This is the current fraction; early epochs of a new training usually have less to leave out.",
        ]
        if self.learned >= _NEARLY_ALL:
            said.append(
                "Nearly all samples are learned. If many epochs remain, training for fewer of them costs next to "
                "nothing, too."
            )
        return said

    def _nothing(self) -> list[str]:
        said = [little_to_leave_out(self.learned)]
        if not self.learned and isinstance(self.rule, Probability) and not self.rule.floor:
            said.append(
                f"The smallest loss is {self.quantiles[0][1]:.3g}. If you train with label smoothing, losses stay "
                "above 0. Give --label-smoothing and --classes, or learned=Probability(0.9, floor=smallest_loss(...))."
            )
        return said

    def _doubts(self) -> list[str]:
        said = []
        bounded = self.gradient_bound is not None and bool(self.suggestions)
        if self.age is not None:
            begin = "The bound holds for current losses; the stored ones" if bounded else "The stored losses"
            said.append(f"{begin} are {self.age:.1f} epochs old on average.")
        elif bounded:
            said.append("The bound holds for current losses; the age of these is not known.")
        if self.age is not None and self.age >= _OLD:
            said.append("A pass over the data without training refreshes them: pruner.observe(index, losses).")
        if self.averaged:
            said.append("This policy stores running averages, not last losses: all of these figures may be off.")
        return said

    def _asked_for(self) -> str:
        left_out = _left_out(self.saving)
        budget = f"to spend {100 - left_out} % of full training's samples, or " if self.refresh else ""
        return f"Policies {budget}to leave out {left_out} % of each epoch:"

    def _numbers(self) -> list[str]:
        rows = []
        if self.learned_at:
            rows.append(("fraction learned", [(f"at {p:g}", as_percent(share)) for p, share in self.learned_at]))
        names = {0.0: "least", 0.5: "median", 1.0: "largest"}
        quantiles = [(names.get(share, f"{100 * share:g} %"), f"{loss:.3g}") for share, loss in self.quantiles]
        rows.append(("losses", quantiles))
        return [f"{title}: {', '.join(f'{name}: {value}' for name, value in pairs)}" for title, pairs in rows]


def advise(source: Pruner | Any, *, learned: Any = 0.9, refresh: float = 0.1) -> Advice:
    """Return what can be pruned after a few epochs of training, according to the stored losses.

    Changes nothing. ::

        print(orderdp.advise(pruner))

    >>> advice = advise([0.01, 0.05, 0.7, 2.3])
    >>> advice.learned, advice.saving
    (0.5, 0.45)

    Args:
        source: A `Pruner`; or an array, tensor or list with one loss per sample, infinite for unseen samples.
        learned: When a sample is learned. A number is the probability of the right class under cross-entropy; with
            label smoothing give ``Probability(0.9, floor=smallest_loss(...))``, for other losses `LossBelow` or
            `RelativeLoss`.
        refresh: Fraction of the learned samples that an epoch still trains on, in [0, 1).
    """
    rule = as_threshold(learned)
    check_ratio("refresh", refresh)
    stored = _stored(source)
    losses = stored["score"]
    _check_kind(losses, rule)
    threshold = float(rule.at(stored))
    seen = losses[np.isfinite(losses)].astype(np.float64)
    share = float(np.mean(losses <= threshold))
    bound: float | None = None
    levels: tuple[float, ...] = ()
    if isinstance(rule, Probability) and rule.floor >= 0:
        bound = skip_bias_bound(threshold, share, refresh, rule.floor)
        levels = _PROBABILITIES
    return Advice(
        samples=len(losses),
        seen=len(seen),
        learned=share,
        rule=rule,
        threshold=threshold,
        refresh=refresh,
        saving=(1 - refresh) * share,
        gradient_bound=bound,
        quantiles=tuple((part, float(np.quantile(seen, part))) for part in _QUANTILES) if len(seen) else (),
        learned_at=tuple((level, float(np.mean(losses <= _loss_at(level, rule)))) for level in levels),
        age=stored.age if len(seen) else None,
        averaged=_AVERAGING.search(stored.policy) is not None,
    )


def little_to_leave_out(learned: float) -> str:
    """Return the sentence for a training in which few samples are learned."""
    return (
        f"Pruning by loss has {'next to ' if learned else ''}nothing to leave out yet: train for fewer epochs instead, "
        "or ask again later."
    )


def whole_percent(saving: float) -> int:
    """Return a fraction in whole percent, rounded down.

    >>> whole_percent(0.349), whole_percent(0.29)
    (34, 29)
    """
    return math.floor(100 * saving + 1e-6)


def _left_out(saving: float) -> int:
    """Return the same for a policy, which must keep at least 1 %."""
    return min(99, whole_percent(saving))


def _rounded_up(bound: float) -> str:
    """Return a bound with three digits, rounded up.

    >>> _rounded_up(0.04832), _rounded_up(0.0)
    ('0.0484', '0')
    """
    shown = f"{bound:.3g}"
    return shown if float(shown) >= bound else f"{bound + 10.0 ** (math.floor(math.log10(bound)) - 2):.3g}"


def as_percent(share: float) -> str:
    """Return a fraction in percent; shows 0 % and 100 % only if they are exact.

    >>> as_percent(0.384), as_percent(0.004), as_percent(0.99999)
    ('38 %', '0.4 %', 'above 99.9 %')
    """
    shown = f"{100 * share:.0f}"
    if share in (0, 1) or shown not in ("0", "100"):
        return f"{shown} %"
    if share < 0.001:
        return "below 0.1 %"
    return "above 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"


def _loss_at(probability: float, rule: Threshold) -> float:
    return Probability(probability, floor=rule.floor).loss


def _written(rule: Threshold) -> str:
    """Return the rule as code."""
    if isinstance(rule, Probability) and not rule.floor:
        return repr(rule.value)
    return f"orderdp.policies.{rule!r}" if type(rule).__module__.startswith("orderdp.") else repr(rule)


def _call(policy: str, first: str, given: Mapping[str, str]) -> str:
    return f"orderdp.{policy}({', '.join([first, *(f'{name}={value}' for name, value in given.items())])})"


def _stored(source: Any) -> StoredLosses:
    if isinstance(source, StoredLosses):
        return source
    if isinstance(source, Pruner):
        return _of_pruner(source)
    return StoredLosses({"score": _checked(source)})


def _of_pruner(pruner: Pruner) -> StoredLosses:
    if len(pruner.local_indices) < pruner.n:
        raise ConfigError(
            f"advice needs the losses of all {pruner.n:,} samples, and with a sharded table this process holds those "
            f"of {len(pruner.local_indices):,}. Gather pruner.scores of all processes and pass them."
        )
    table = pruner._table
    there = np.ones(pruner.n, dtype=np.bool_)
    if (removed := getattr(pruner, "removed", None)) is not None:
        there[removed.numpy()] = False
    columns = {name: table[name][there] for name in table.declared}
    return StoredLosses(columns, pruner.report().get("staleness"), describe(pruner.policy))


def _checked(losses: Any) -> np.ndarray:
    if isinstance(losses, str | bytes) or not hasattr(losses, "__len__"):
        raise ConfigError(
            "the source of advice must be a Pruner, or an array with one loss for each sample, got "
            f"{type(losses).__name__}."
        )
    if hasattr(losses, "detach"):
        losses = losses.detach().cpu()
        losses = (losses if losses.element_size() > 2 else losses.float()).numpy()  # numpy has no bfloat16
    array = np.asarray(losses)
    if array.dtype.kind not in "fiu":
        raise ConfigError(f"losses must be numbers, got {array.dtype}.")
    if array.ndim != 1 or not len(array):
        raise ConfigError(
            f'there must be one loss for each sample, got shape {array.shape}. Compute them with reduction="none"; '
            "orderdp.per_sample reduces what has more dimensions."
        )
    wrong = int(np.count_nonzero(np.isnan(array) | (array == -math.inf)))
    if wrong:
        raise ConfigError(
            f"losses must be numbers, or infinite for samples that were never seen, got {wrong} of {len(array)} that "
            f"{'is' if wrong == 1 else 'are'} NaN or minus infinity. Leave those samples out, or set them to infinity."
        )
    return array


def _check_kind(losses: np.ndarray, rule: Threshold) -> None:
    """Raise if the rule is a probability and the losses cannot be such cross-entropies."""
    if not isinstance(rule, Probability):
        return
    smallest = float(losses.min())
    if smallest < rule.floor - 0.01 * abs(rule.floor) - 0.001:  # more than the rounding of half precision
        smoothed = ", with the label smoothing that was given" if rule.floor else ""
        hint = (
            "Give the label smoothing and the number of classes of the training"
            if rule.floor
            else "For losses other than cross-entropy pass a threshold: learned=LossBelow(...)"
        )
        raise ConfigError(f"cross-entropy is never below {rule.floor:.4g}{smoothed}, got {smallest:.4g}. {hint}.")


def stored_losses(path: Path) -> StoredLosses | np.ndarray:
    """Read the losses in a file.

    Args:
        path: An .npy or .npz file of losses; any other file is read as a checkpoint.
    """
    if path.suffix in (".npy", ".npz"):
        return _array(path)
    states = list(_states(_loaded(path)))
    if not states:
        raise StateError(
            f"{str(path)!r} holds no state of a Pruner. Save one with it: save_checkpoint(path, "
            '{"pruner": pruner.state_dict()}).'
        )
    if len(states) > 1:
        raise StateError(
            f"{str(path)!r} holds the states of {len(states)} pruners or processes, but advice needs exactly one. Call "
            "pruner.sync(), and save one state in its own file."
        )
    try:
        return _losses(states[0], path)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(
            f"the state of the pruner in {str(path)!r} is damaged ({error!r}). Use another one."
        ) from error


def refuse_parts(folder: Path) -> None:
    """Raise if `orderdp.distributed.save_parts` wrote the folder."""
    parts = sorted(folder.glob("pruner-*-of-*.pt"))
    if parts:
        raise _in_parts(folder, len(parts))


def _array(path: Path) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            name = "losses" if "losses" in names else names[0] if len(names) == 1 else None
            if name is not None:
                array: np.ndarray = loaded[name]
                return array
    except (ValueError, zipfile.BadZipFile, EOFError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise DatasetError(
            f"{str(path)!r} cannot be read ({reason}). It must hold numbers, written by numpy.save or numpy.savez."
        ) from error
    raise DatasetError(
        f"{str(path)!r} must hold an array 'losses', or one array alone, it holds {', '.join(names) or 'none'}."
    )


def _loaded(path: Path) -> dict[str, Any]:
    try:
        return load_checkpoint(path, mmap=True)  # of a large model only the names are read
    except StateError:
        return load_checkpoint(path)  # files in the old format cannot be mapped


def _states(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the states of pruners, at any depth."""
    if isinstance(value, Mapping):
        if value.get("format") == FORMAT:
            yield value
            return
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _states(part)


def _losses(state: Mapping[str, Any], path: Path) -> StoredLosses:
    if state["version"] != VERSION:
        raise StateError(
            f"{str(path)!r} must have version {VERSION}, got version {state['version']!r}. Read it with the version of "
            "orderdp that wrote it."
        )
    if state.get("group") is not None:
        raise StateError(
            f"{str(path)!r} was written by rank {state['group']['rank']} of {state['group']['world_size']} and lacks "
            "the losses of the other ranks. Call pruner.sync() on all ranks before state_dict()."
        )
    timeline = state["timeline"]
    if "shard" in timeline and timeline["shard"]["world_size"] > 1:
        raise _in_parts(path, timeline["shard"]["world_size"])
    columns = {name: values.numpy() for name, values in state["table"]["columns"].items()}
    there = np.ones(int(state["n"]), dtype=np.bool_)
    if state.get("roster") is not None:
        there[state["roster"]["removed"].numpy()] = False
    columns = {name: values[there] for name, values in columns.items()}
    age = mean_age(columns["seen"], int(timeline["clock"]["epoch"])) if "seen" in columns else None
    return StoredLosses({"score": columns["score"], **columns}, age, str(state["policy"]))


def _in_parts(path: Path, parts: int) -> StateError:
    return StateError(
        f"{str(path)!r} holds a sharded table, or one of {parts} parts of it, and advice needs all losses. Gather "
        "pruner.scores of all processes, save them with numpy.save, and give that file."
    )
