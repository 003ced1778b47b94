"""Bookkeeping stays out of compiled graphs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

__all__ = ["outside_graphs"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


def outside_graphs(method: _Method) -> _Method:
    """Keeps a method out of `torch.compile`, which would trace the bookkeeping and guard on its counters.

    The compiler is asked to keep out only while it is tracing: loading it takes as long as loading torch, and most
    loops do without.
    """

    @functools.wraps(method)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return torch.compiler.disable(method)(*args, **kwargs)  # type: ignore[no-untyped-call]
        return method(*args, **kwargs)

    return cast("_Method", guarded)
