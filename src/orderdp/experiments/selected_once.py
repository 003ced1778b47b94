"""Static coresets in a comparison: selected once with a proxy, before training; their cost is counted."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from orderdp import Policy, Selection
from orderdp._locks import in_turn
from orderdp.coresets import NAMES, Proxy, run
from orderdp.coresets.registry import build
from orderdp.errors import ConfigError, StateError
from orderdp.experiments.config import Settings
from orderdp.experiments.tasks import Task
from orderdp.policies import Fixed

__all__ = ["StaticChoice", "choose", "is_static", "make_proxy"]


_FILE = "selection.npz"


# Settings that a proxy depends on; no other setting of a run changes it.
_PROXY_FIELDS = ("data", "task", "model", "width", "seed", "proxy_epochs", "proxy_inits")


class StaticChoice(NamedTuple):
    """A policy built before training, and its cost.

    Attributes:
        policy: Policy that serves a coreset or a plan.
        seconds: Seconds for the proxy and the selection.
        batch_size: The only batch size that fits the policy; None if any does.
        samples: Number of samples that went forward and backward through the proxy, if counted.
        failed: Why there is no selection; the run fails.
    """

    policy: Policy
    seconds: float
    batch_size: int | None = None
    samples: Mapping[str, int] | None = None
    failed: str | None = None


def is_static(policy: str) -> bool:
    """Whether the policy of this name is a static method."""
    return policy in NAMES


def choose(settings: Settings, task: Task, folder: Path, proxies: Path, device: torch.device) -> StaticChoice:
    """Select the coreset of a run with the method of its settings; done once, and read again on resume.

    Args:
        settings: Method, ratio and proxy.
        task: Data and model.
        folder: Folder of the run.
        proxies: Folder of trained proxies, for all runs that share one.
        device: Device on which the proxy is trained.
    """
    if settings.prune_ratio is None:
        raise ConfigError(f"the static method {settings.policy!r} needs a prune ratio.")
    file = folder / _FILE
    if not file.exists():
        with _proxy_to_itself(settings, proxies):
            proxy = make_proxy(settings, task, proxies, device)
            outcome = run(
                settings.policy, proxy, settings.prune_ratio, seed=settings.seed, **settings.policy_parameters
            )
            outcome.save(file)
    try:
        with open(file, "rb") as opened, np.load(opened, allow_pickle=False) as found:
            weights = found["weights"] if "weights" in found.files else None
            seconds = float(found["proxy_seconds"]) + float(found["selection_seconds"])
            return StaticChoice(Fixed(Selection(found["indices"], weights)), seconds)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StateError(f"the coreset in {str(file)!r} is damaged ({error}). Remove it to choose again.") from error


def make_proxy(settings: Settings, task: Task, proxies: Path | None, device: torch.device) -> Proxy:
    """Build the proxy of these settings; a folder of its own in `proxies` keeps its weights and records, if given."""
    plain = getattr(task, "plain_training_data", None)
    return Proxy(
        lambda: _fresh(task),
        task.train_set if plain is None else plain(),
        labels=getattr(task, "labels", None),
        epochs=settings.proxy_epochs,
        inits=settings.proxy_inits,
        cache=None if proxies is None else _cache(settings, proxies),
        device=device,
        seed=settings.seed,
    )


@contextmanager
def _proxy_to_itself(settings: Settings, proxies: Path) -> Iterator[None]:
    """Wait for runs that train the same proxy: a proxy is trained once, and other runs find it with its cost."""
    if build(settings.policy, **settings.policy_parameters).needs.nothing:
        yield
        return
    shared = _cache(settings, proxies)
    shared.mkdir(parents=True, exist_ok=True)
    with in_turn(shared):
        yield


def _cache(settings: Settings, proxies: Path) -> Path:
    own = {name: value for name, value in settings.as_dict().items() if name in _PROXY_FIELDS}
    return proxies / hashlib.blake2b(json.dumps(own, sort_keys=True).encode(), digest_size=4).hexdigest()


def _fresh(task: Task) -> nn.Module:
    # The proxy seeds the global generator for each of its models; tasks take a seed.
    seed: Any = torch.randint(1 << 31, ())
    return task.build_model(int(seed))
