"""The contract of a policy as checks, for the tests of any policy.

::

    from orderdp.testing import check_policy

    def test_my_policy():
        check_policy(MyPolicy(prune_ratio=0.5), epochs=10)
"""

from __future__ import annotations

import pickle
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from orderdp.errors import UnreachableRatioWarning
from orderdp.losses import feedback_arguments
from orderdp.policy import Context, Policy, Selection, describe
from orderdp.score_table import ScoreTable

__all__ = ["check_policy", "global_generators_untouched", "tables"]


def check_policy(policy: Policy, *, epochs: int = 10, labels: np.ndarray | None = None, picklable: bool = True) -> None:
    """Raise an AssertionError that says which rule of the policy contract is broken, and on which table.

    Args:
        policy: The policy to check.
        epochs: Number of planned epochs in its context.
        labels: Classes in its context, if it needs them: one for each of 60 samples.
        picklable: Whether to check that it pickles (a policy that holds a lambda does not).
    """
    assert isinstance(policy, Policy), "a policy subclasses orderdp.Policy"
    assert " at 0x" not in describe(policy), "a policy describes itself the same in every process"
    if picklable:
        assert describe(pickle.loads(pickle.dumps(policy))) == describe(policy), "a policy pickles"
    for name, table in [*tables(policy.columns), *_trained_tables(policy)]:
        for epoch in (0, 1, epochs - 1):
            context = Context(
                n=table.n, epoch=epoch, seed=3, epochs=epochs, labels=None if labels is None else labels[: table.n]
            )
            _check_draw(policy, table, context, f"{describe(policy)} on a table with {name}, epoch {epoch}")


def tables(columns: Any = ()) -> Iterator[tuple[str, ScoreTable]]:
    """Yield tables that every policy must handle, each with its name.

    Args:
        columns: The columns that the policy declares.
    """
    rng = np.random.default_rng(0)
    n = 60
    losses = {
        "random losses": rng.random(n),
        "equal losses": np.full(n, 2.0),
        "nothing seen": np.full(n, np.inf),
        "some unseen": np.where(rng.random(n) < 0.4, np.inf, rng.random(n)),
        "one seen": np.where(np.arange(n) == 7, 1.0, np.inf),
        "losses of every size": np.concatenate(
            ([0.0, 1e-30, 1e30], rng.random(n - 3) * 10.0 ** rng.integers(-20, 20, n - 3))
        ),
        "negative losses": rng.standard_normal(n) * 5,
        "one sample": np.array([1.0]),
        "one unseen sample": np.array([np.inf]),
        "two samples": np.array([1.0, 3.0]),
    }
    for name, values in losses.items():
        table = ScoreTable(len(values), columns)
        seen = np.flatnonzero(np.isfinite(values))
        if len(seen):
            table.write(torch.from_numpy(seen), torch.from_numpy(values[seen]).float(), epoch=0)
        yield name, table


def _trained_tables(policy: Policy) -> Iterator[tuple[str, ScoreTable]]:
    """Yield tables as a few batches of training leave them, with the further arguments that the policy needs."""
    compute_columns = policy.compute_columns
    generator = torch.Generator().manual_seed(1)
    for name, share in (("everything trained on", 1.0), ("half of it trained on", 0.5)):
        table = ScoreTable(60, policy.columns)
        for batch in range(12):
            index = torch.randperm(int(60 * share), generator=generator)[:20]
            extra = {
                argument: torch.rand(20, generator=generator).round(decimals=1)
                for argument in feedback_arguments(compute_columns).required
            }
            losses = torch.rand(20, generator=generator)
            table.write(index, losses, epoch=batch // 4, compute_columns=compute_columns, extra=extra)
        yield name, table


def _check_draw(policy: Policy, table: ScoreTable, context: Context, where: str) -> None:
    before = {name: table[name].copy() for name in table.declared}
    with global_generators_untouched(where), warnings.catch_warnings():
        warnings.simplefilter("ignore", UnreachableRatioWarning)
        try:
            size = policy.size(table.n, context)
        except ValueError:
            assert table.n <= 2, f"{where}: size failed on an ordinary data set"
            return  # too few samples for this prune ratio
        first, second = policy.select(table, context), policy.select(table, context)
    _check_selection(first, table.n, size, where)
    assert np.array_equal(first.indices, second.indices), f"{where}: the same seed, epoch and table give the same draw"
    for name, values in before.items():
        assert np.array_equal(values, table[name]), f"{where}: a draw does not write to the table"
    if size is None:
        low, high = policy.size_bounds(table.n, context)
        assert low <= len(first) <= high, f"{where}: {len(first)} kept, outside the bounds {low} to {high}"


def _check_selection(selection: Selection, n: int, size: int | None, where: str) -> None:
    indices, weights = selection.indices, selection.weights
    assert len(indices) >= 1, f"{where}: at least one sample is kept"
    assert size is None or len(indices) == size, f"{where}: {len(indices)} kept, {size} declared"
    assert len(np.unique(indices)) == len(indices), f"{where}: indices are unique"
    assert indices.min() >= 0, f"{where}: indices are not negative"
    assert indices.max() < n, f"{where}: indices are below n"
    if weights is not None:
        assert np.isfinite(weights).all(), f"{where}: weights are finite"
        assert (weights > 0).all(), f"{where}: weights are positive"


@contextmanager
def global_generators_untouched(where: str = "") -> Iterator[None]:
    """Raise if the code inside draws from or reseeds a global generator.

    Args:
        where: Prefix of the error messages.
    """
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    assert before[0] == after[0], f"{where}: Python's random generator is left alone"
    same = all(np.array_equal(a, b) for a, b in zip(before[1], after[1], strict=True))
    assert same, f"{where}: numpy's global generator is left alone"
    assert torch.equal(before[2], after[2]), f"{where}: torch's global generator is left alone"
