"""ScoreTable: what is remembered about each sample, declared as columns.

The table lives where the losses are. There a step only issues index operations and never waits for their result;
what has to be complained about is counted on the device and read once an epoch. On the CPU, where waiting costs
nothing, the same step is made of numpy calls, which have a third of the overhead, and complains at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from orderdp.errors import ConfigError, IndexRangeError, StateError
from orderdp.policy import Column

__all__ = ["SCORE", "SEEN", "USAGE", "BatchRows", "ScoreTable"]

SCORE = Column("score", initial=float("inf"))
USAGE = Column("usage", initial=0, dtype="int16", merge="sum")
#: The epoch in which the score was last refreshed; -1 for never.
SEEN = Column("seen", initial=-1, dtype="int16")

_BUILT_IN = (SCORE, USAGE, SEEN)

# Counts start in two bytes and move to four long before they could overflow.
_WIDEN_AT = 1 << 14

Remember = Callable[..., Mapping[str, torch.Tensor]]


class BatchRows:
    """The rows of one batch as they were before it, gathered only if asked for."""

    def __init__(self, table: ScoreTable, index: torch.Tensor) -> None:
        self._table = table
        self._index = index

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._table.column(name).index_select(0, self._index)


class ScoreTable:
    """Columns of numbers, one row for each of `n` samples.

    There is always "score" (float32, +inf for unseen), "usage" (how often trained on) and "seen" (the epoch of
    the last refresh, -1 for never): eight bytes a sample.

    Args:
        n: Number of samples.
        columns: What else to remember.
    """

    def __init__(self, n: int, columns: Iterable[Column] = ()) -> None:
        self.n = n
        self.declared: dict[str, Column] = {column.name: column for column in _BUILT_IN}
        for column in columns:
            if column.name in self.declared and column != self.declared[column.name]:
                raise ConfigError(
                    f"column {column.name!r} is declared twice, as {self.declared[column.name]} and {column}. "
                    "Give one of them another name."
                )
            self.declared[column.name] = column
        # One row more than there are samples: feedback with an impossible index goes there, because finding out
        # whether there is any would mean waiting for the device.
        self._columns = {
            name: torch.full((n + 1,), column.initial, dtype=_torch_dtype(column.dtype))
            for name, column in self.declared.items()
        }
        self._strays = torch.zeros(2, dtype=torch.int64)  # non-finite losses, impossible indices
        self._ones: torch.Tensor = torch.ones(0, dtype=torch.int16)
        self._writes = 0

    # -- where it lives ------------------------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        """Where the columns are."""
        return self._columns["score"].device

    def move(self, device: torch.device) -> None:
        """Moves the table to `device`."""
        self._columns = {name: column.to(device) for name, column in self._columns.items()}
        self._strays = self._strays.to(device)
        self._ones = self._ones.to(device)

    # -- reading -------------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> np.ndarray:
        """The column called `name`, read-only, on the host; without a copy where the table is there already."""
        values: np.ndarray = self.column(name)[: self.n].cpu().numpy()
        values.flags.writeable = False
        return values

    def column(self, name: str) -> torch.Tensor:
        """The column called `name` on the table's device, with one row more than there are samples."""
        try:
            return self._columns[name]
        except KeyError:
            raise ConfigError(
                f"there is no column {name!r}; there are {', '.join(self._columns)}. "
                "A policy declares what it needs in `columns`."
            ) from None

    def scores_of(self, indices: np.ndarray) -> np.ndarray:
        """The scores of some samples, on the host."""
        where = torch.from_numpy(indices).to(self.device)
        scores: np.ndarray = self._columns["score"].index_select(0, where).cpu().numpy()
        return scores

    # -- writing -------------------------------------------------------------------------------------------

    def write(
        self,
        index: torch.Tensor,
        losses: torch.Tensor,
        *,
        epoch: int,
        trained: bool = True,
        remember: Remember | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Remembers what a batch said.

        A loss that is not finite leaves a seen sample alone and counts as the batch's finite mean for an unseen
        one, so that it does not stay first for ever.

        Args:
            index: Which samples, int64.
            losses: One number for each, detached.
            epoch: The current epoch, for "seen".
            trained: Whether this counts as training ("usage").
            remember: How losses become columns; None writes them to "score".
            extra: More keyword arguments of `remember`.
        """
        index = self._checked(index)
        self._writes += 1
        losses = losses.to(device=self.device, dtype=torch.float32, non_blocking=True)
        if self.device.type == "cpu" and remember is None and self._write_plainly(index, losses, epoch):
            pass
        else:
            self._write_carefully(index, losses, epoch, remember, extra or {})
        if trained:
            self._columns["usage"].index_add_(0, index, self._ones_like(index))

    def _checked(self, index: torch.Tensor) -> torch.Tensor:
        """The index on the table's device, with every entry pointing at some row."""
        if index.device.type == "cpu":
            # Seen as unsigned, a negative index is a huge one: one comparison covers both ends.
            host = index.numpy()
            if host.size and host.view(np.uint64).max() >= self.n:
                wrong = host[(host < 0) | (host >= self.n)]
                raise IndexRangeError(
                    f"indices must be in [0, {self.n}), the length of the data set; got {int(wrong[0])} "
                    f"({wrong.size} of {host.size} in this batch are outside). "
                    "Pass the index that came with the batch, unchanged."
                )
            return index if self.device.type == "cpu" else index.to(self.device, non_blocking=True)
        index = index.to(self.device)
        outside = (index < 0) | (index >= self.n)
        self._strays[1] += outside.sum()
        return torch.where(outside, self.n, index)

    def _write_plainly(self, index: torch.Tensor, losses: torch.Tensor, epoch: int) -> bool:
        """The common case on the CPU; says False, having written nothing, where a loss is not finite."""
        values = losses.numpy()
        if not np.isfinite(values).all():
            return False
        rows = index.numpy()
        self._columns["score"].numpy()[rows] = values
        self._columns["seen"].numpy()[rows] = epoch
        return True

    def _write_carefully(
        self, index: torch.Tensor, losses: torch.Tensor, epoch: int, remember: Remember | None, extra: Mapping[str, Any]
    ) -> None:
        finite = torch.isfinite(losses)
        self._strays[0] += (~finite).sum()
        mean = torch.where(finite, losses, 0.0).sum() / finite.sum().clamp(min=1)
        usable = torch.where(finite, losses, mean)
        rows = BatchRows(self, index)
        written = finite | (rows["seen"] < 0)
        new = {"score": usable} if remember is None else dict(remember(rows, usable, **extra))
        for name, values in new.items():
            self._merge(name, index, values, written)
        self._merge("seen", index, torch.full_like(rows["seen"], epoch), written)

    def _merge(self, name: str, index: torch.Tensor, values: torch.Tensor, written: torch.Tensor) -> None:
        column = self.column(name)
        values = values.to(device=column.device, dtype=column.dtype)
        if self.declared[name].merge == "sum":
            column.index_add_(0, index, torch.where(written, values, torch.zeros_like(values)))
        else:
            column.index_copy_(0, index, torch.where(written, values, column.index_select(0, index)))

    def _ones_like(self, index: torch.Tensor) -> torch.Tensor:
        usage = self._columns["usage"]
        if len(self._ones) < len(index) or self._ones.dtype != usage.dtype:
            self._ones = torch.ones(len(index), dtype=usage.dtype, device=usage.device)
        return self._ones[: len(index)]

    # -- once an epoch ---------------------------------------------------------------------------------------

    def strays(self) -> tuple[int, int]:
        """How many losses were not finite and how many indices impossible. Waits for the device."""
        nonfinite, outside = self._strays.tolist()
        return nonfinite, outside

    def forget_strays(self) -> None:
        """Counts them from 0 again."""
        self._strays.zero_()

    def make_room(self, epoch: int) -> None:
        """Widens the counts before they can overflow. Called once an epoch."""
        if epoch >= _WIDEN_AT:
            self._columns["seen"] = self._columns["seen"].to(torch.int32)
        # No count exceeds the number of writes, so the maximum need not be looked for before that.
        if self._writes >= _WIDEN_AT and int(self._columns["usage"].max()) >= _WIDEN_AT:
            self._columns["usage"] = self._columns["usage"].to(torch.int32)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """A copy of all columns on the CPU, and the counters."""
        columns = {name: column[: self.n].to("cpu", copy=True) for name, column in self._columns.items()}
        return {"columns": columns, "strays": self._strays.to("cpu", copy=True), "writes": self._writes}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises where `load_state_dict` would not fit, and changes nothing."""
        columns = state["columns"]
        if set(columns) != set(self._columns):
            raise StateError(
                f"the checkpoint must have the columns {sorted(self._columns)}, it has {sorted(columns)}. "
                "It was written with another policy or by another version."
            )
        for name, values in columns.items():
            wanted = self._columns[name]
            if not isinstance(values, torch.Tensor) or values.shape != (self.n,):
                came = tuple(values.shape) if isinstance(values, torch.Tensor) else type(values).__name__
                raise StateError(
                    f"column {name!r} of the checkpoint must hold {self.n} values, got {came}. "
                    "Use a checkpoint of this data set that was written to its end."
                )
            if values.is_floating_point() != wanted.is_floating_point() or values.isnan().any():
                raise StateError(
                    f"column {name!r} of the checkpoint must hold numbers like {wanted.dtype}, "
                    f"got {values.dtype} or NaN. Use another checkpoint."
                )
        if not isinstance(state["strays"], torch.Tensor) or state["strays"].shape != (2,):
            raise StateError("the checkpoint's counters are damaged. Use another checkpoint.")

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave; the table stays on its device."""
        self.check_state(state)
        device = self.device
        for name, values in state["columns"].items():
            column = torch.full((self.n + 1,), self.declared[name].initial, dtype=values.dtype)
            column[: self.n] = values.cpu()
            self._columns[name] = column.to(device)
        self._strays = state["strays"].to(device, copy=True)
        self._writes = int(state["writes"])


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ConfigError(f"a column's dtype must be one that torch has, got {name!r}. Use 'float32', for example.")
    return dtype
