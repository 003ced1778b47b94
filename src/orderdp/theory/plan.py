"""The effect of a setting, computed before training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from orderdp._draw import pool_sizes
from orderdp._planning import steps_within
from orderdp._validation import check_dials, is_count
from orderdp.errors import ConfigError
from orderdp.theory._checks import check_design, checked_positive
from orderdp.theory.bounds import deviation, sampling_rate
from orderdp.theory.coverage import coverage
from orderdp.theory.rank_rules import Top
from orderdp.theory.weights import weights_at

__all__ = ["Plan", "plan"]


@dataclass(frozen=True)
class Plan:
    """The effect of a setting.

    Attributes:
        n: Number of samples.
        s: Size of the pool.
        q: Samples trained on per epoch.
        epochs: Number of epochs.
        batch_size: Samples per batch.
        steps_an_epoch: Optimizer steps per epoch.
        steps: Optimizer steps in total.
        steps_saved: Optimizer steps saved compared with full data.
        samples: Samples trained on in total.
        samples_saved: Samples saved compared with full data.
        saved: Fraction of the samples that is saved, 1 - q/n.
        largest_inclusion: Probability that the hardest sample is kept in an epoch.
        smallest_inclusion: Probability that the easiest sample is kept in an epoch, given its rank.
        effective_sample_size: Number of equally weighted samples that the surrogate risk is worth.
        deviation: C_s of Theorem 3.
        sampling: Theorem 3's sampling term for losses of at most 1.
        coverage: Expected fraction of the samples seen after all epochs.
        all_seen_epoch: Epochs until every sample has been seen, with probability 0.999; None for never.
        hours: Hours of the pruned run, if the hours of the full run were given.
        hours_saved: Hours saved compared with the full run.
        money_saved: Hours saved times the price, if a price was given.
    """

    n: int
    s: int
    q: int
    epochs: int
    batch_size: int
    steps_an_epoch: int
    steps: int
    steps_saved: int
    samples: int
    samples_saved: int
    saved: float
    largest_inclusion: float
    smallest_inclusion: float
    effective_sample_size: float
    deviation: float
    sampling: float
    coverage: float
    all_seen_epoch: int | None
    hours: float | None
    hours_saved: float | None
    money_saved: float | None

    @property
    def exploration(self) -> float:
        """s/n."""
        return self.s / self.n

    @property
    def exploitation(self) -> float:
        """q/s."""
        return self.q / self.s

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, with the dials, for JSON."""
        return {**asdict(self), "exploration": self.exploration, "exploitation": self.exploitation}


def plan(
    n: int,
    prune_ratio: float | None = None,
    epochs: int = 1,
    batch_size: int = 1,
    *,
    exploration: float | None = None,
    exploitation: float | None = None,
    drop_last: bool = False,
    world_size: int = 1,
    hours: float | None = None,
    price: float | None = None,
) -> Plan:
    """Compute the effect of a setting.

    >>> p = plan(50_000, prune_ratio=0.4, epochs=200, batch_size=128, hours=2.0)
    >>> p.s, p.q, p.steps, p.steps_saved, p.samples_saved, round(p.hours_saved, 6), p.all_seen_epoch
    (44006, 30000, 47000, 31200, 4000000, 0.8, 9)

    Args:
        n: Number of samples.
        prune_ratio: Fraction of the samples left out per epoch.
        epochs: Number of epochs.
        batch_size: Samples per batch and rank.
        exploration: Size of the pool, s/n.
        exploitation: Fraction of the pool that is kept, q/s.
        drop_last: Whether a last, smaller batch is dropped.
        world_size: Number of ranks that share the work.
        hours: Hours of the full run. Time is assumed proportional to the number of samples.
        price: Price per hour.
    """
    s, q = _sizes(n, prune_ratio, exploration, exploitation)
    if not is_count(epochs):
        raise ConfigError(f"epochs must be a whole number, at least 1, got {epochs!r}.")
    if price is not None and hours is None:
        raise ConfigError("price is per hour and needs hours, the duration of the full run. Give both.")
    hours = None if hours is None else checked_positive("hours", hours)
    price = None if price is None else checked_positive("price", price, zero_allowed=True)
    steps, _ = steps_within([(q, q)], batch_size, drop_last=drop_last, world_size=world_size)
    full_steps, _ = steps_within([(n, n)], batch_size, drop_last=drop_last, world_size=world_size)
    if steps == 0:
        raise ConfigError(
            f"an epoch must have at least one step; the {q} samples it keeps make none, in batches of {batch_size} for "
            f"each of {world_size} processes{' without incomplete batches' if drop_last else ''}. Choose smaller "
            "batches or fewer processes, or prune less."
        )
    seen = coverage(n, s, q, epochs)
    hours_saved = None if hours is None else hours * (1 - q / n)
    return Plan(
        n=int(n),
        s=s,
        q=q,
        epochs=int(epochs),
        batch_size=int(batch_size),
        steps_an_epoch=steps,
        steps=steps * epochs,
        steps_saved=(full_steps - steps) * epochs,
        samples=q * epochs,
        samples_saved=(n - q) * epochs,
        saved=1 - q / n,
        largest_inclusion=float(weights_at(1, n, s, q)),
        smallest_inclusion=float(weights_at(n, n, s, q)),
        effective_sample_size=_effective_sample_size(n, s, q),
        deviation=deviation(n, s, q),
        sampling=deviation(n, s, q) * sampling_rate(n, s),
        coverage=float(seen.share[-1]),
        all_seen_epoch=seen.all_seen_epoch,
        hours=None if hours is None or hours_saved is None else hours - hours_saved,
        hours_saved=hours_saved,
        money_saved=None if price is None or hours_saved is None else price * hours_saved,
    )


def _effective_sample_size(n: int, s: int, q: int) -> float:
    """Return q^2 / sum gamma_j^2, without an array of n numbers."""
    flat, falling = Top(q).cliff(n, s)
    return float(q**2 / (flat * (s / n) ** 2 + falling @ falling))


def _sizes(n: Any, prune_ratio: Any, exploration: Any, exploitation: Any) -> tuple[int, int]:
    if not is_count(n):
        raise ConfigError(f"n must be a whole number of samples, at least 1, got {n!r}.")
    check_dials(prune_ratio, exploration, exploitation)
    s, q = pool_sizes(int(n), prune_ratio, exploration, exploitation)
    if q < 1:
        given = {"prune_ratio": prune_ratio, "exploration": exploration, "exploitation": exploitation}
        said = ", ".join(f"{name}={value}" for name, value in given.items() if value is not None)
        raise ConfigError(f"{said} keeps {q} of {n} samples; at least one must be kept. Prune less.")
    check_design(int(n), s, q)
    return s, q
