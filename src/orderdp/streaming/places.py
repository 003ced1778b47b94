"""Places: loaders and streams that remember how far they have come, as torchdata's StatefulDataLoader does.

Such a loader goes on in one of two ways. It gives a data set its old state back; or, where that has none, it goes
through the first batches again and throws them away. A filter that goes on does not serve these batches a second
time, so a loader that throws batches away would lose samples that nobody has trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orderdp.errors import StateError

__all__ = ["check_nothing_is_skipped", "has_place"]


def has_place(stream: Any) -> bool:
    """Whether a stream or data set can say where it is and be put back there."""
    return all(callable(getattr(stream, name, None)) for name in ("state_dict", "load_state_dict"))


def check_nothing_is_skipped(loader: Any) -> None:
    """Refuses a loader that is about to throw batches away because its state was loaded."""
    state = getattr(loader, "next_iter_state", None)
    if not isinstance(state, Mapping):
        return
    if not has_place(getattr(loader, "dataset", None)):
        raise StateError(
            f"a {type(loader).__name__} whose state was loaded skips batches, and the filter leaves out what was "
            "trained on by itself: samples would be lost. Do not load the loader's state; the filter's is enough. Or "
            "wrap the stream in keys.only(stream), which gives the loader nothing to skip."
        )
    if state.get("_steps_since_snapshot"):
        raise StateError(
            f"the state of this {type(loader).__name__} is {state['_steps_since_snapshot']} batches old, and it would "
            "skip as many that nobody has trained on. Make it with snapshot_every_n_steps=1, or do not load its state; "
            "the filter's is enough."
        )
