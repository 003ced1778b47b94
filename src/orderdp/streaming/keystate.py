"""KeyState: what a checkpoint of a filter holds, and whether a filter can go on from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from orderdp.errors import StateError
from orderdp.streaming.keymemory import KeyMemory

__all__ = ["KeyState"]

_FORMAT = "orderdp.KeyFilter"
_VERSION = 1


class KeyState(NamedTuple):
    """Everything that a filter must know to go on.

    Args:
        policy: How it describes itself.
        seed: Of everything random.
        epoch: Which one is next or open.
        drawn: Whether it has been decided about it.
        weighted: Whether its samples have weights.
        trained: How many of them have been trained on.
        memory: All keys.
    """

    policy: str
    seed: int
    epoch: int
    drawn: bool
    weighted: bool
    trained: int
    memory: KeyMemory

    def as_dict(self, *, unsynced: bool) -> dict[str, Any]:
        """Tensors and plain values.

        Args:
            unsynced: Whether it lacks what other ranks have learnt, and so cannot be loaded.
        """
        plain = {**self._asdict(), "memory": self.memory.state_dict()}
        return {"format": _FORMAT, "version": _VERSION, "unsynced": unsynced, **plain}

    @classmethod
    def read(cls, state: Any, policy: str) -> KeyState:
        """What `state` describes, checked, for a filter with this policy."""
        _check_origin(state, policy)
        try:
            return cls(
                policy=policy,
                seed=int(state["seed"]),
                epoch=int(state["epoch"]),
                drawn=bool(state["drawn"]),
                weighted=bool(state["weighted"]),
                trained=int(state["trained"]),
                memory=KeyMemory.from_state(state["memory"]),
            )
        except StateError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"the checkpoint is damaged ({error!r}). Use another one.") from error


def _check_origin(state: Any, policy: str) -> None:
    if not isinstance(state, Mapping) or state.get("format") != _FORMAT or state.get("version") != _VERSION:
        raise StateError(
            f"this must be what KeyFilter.state_dict() gave, of version {_VERSION}. Pass that part of the checkpoint."
        )
    if state.get("policy") != policy:
        raise StateError(
            f"the checkpoint was written with {state.get('policy')}, this filter has {policy}. "
            "Make the filter with the same policy."
        )
    if state.get("unsynced"):
        raise StateError(
            "the checkpoint was written by one of several ranks without sync(): it lacks what the others had "
            "learnt. Call keys.sync() on all ranks before state_dict()."
        )
