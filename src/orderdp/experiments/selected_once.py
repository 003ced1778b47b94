"""Static coresets in a comparison: chosen once with a proxy, trained on like anything else, their cost counted."""

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


# What a proxy depends on; everything else of a run does not change it.
_PROXY_FIELDS = ("data", "task", "model", "width", "seed", "proxy_epochs", "proxy_inits")


class StaticChoice(NamedTuple):
    """A policy that was made beforehand, and what it took to make it.

    Attributes:
        policy: Serves a coreset, or a plan.
        seconds: Of the proxy and the choice.
        batch_size: The only one that fits the policy; None where any does.
        samples: How many went forward and backward through the proxy, where that was counted.
        failed: Why there is nothing to train on; the run fails.
    """

    policy: Policy
    seconds: float
    batch_size: int | None = None
    samples: Mapping[str, int] | None = None
    failed: str | None = None


def is_static(policy: str) -> bool:
    """Whether this is the name of a static method."""
    return policy in NAMES


def choose(settings: Settings, task: Task, folder: Path, proxies: Path, device: torch.device) -> StaticChoice:
    """What the settings' method chooses; made once for a run, and read again when it is resumed.

    Args:
        settings: Method, ratio, proxy.
        task: Data and model.
        folder: Of the run.
        proxies: Where trained proxies are kept, for all runs that share one.
        device: Where the proxy is trained.
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
    """The proxy of these settings; what is trained and recorded stays in a folder of its own, or goes with it."""
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
    """Waits for runs that train the same proxy at the same time: it is trained once, and found with what that took."""
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
    # The proxy seeds the generator for each of its models; tasks take a seed.
    seed: Any = torch.randint(1 << 31, ())
    return task.build_model(int(seed))
