"""Selections made before training, with their cost: coresets chosen with a proxy, and plans that a proxy records."""

from __future__ import annotations

import hashlib
import inspect
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler

from orderdp import Policy, Pruner, Selection
from orderdp._files import in_turn
from orderdp._training import GlobalGenerators
from orderdp._validation import is_count, suggestion
from orderdp.coresets import NAMES, Proxy, run
from orderdp.coresets.registry import build
from orderdp.errors import ConfigError, NonFiniteLossError, StateError
from orderdp.experiments.config import Settings
from orderdp.experiments.models import quarter_width
from orderdp.experiments.tasks import Losses, Task, task_batches
from orderdp.experiments.trainer import train_state
from orderdp.plans import Plan, PlanRecorder
from orderdp.policies import Fixed, FullData, Replay
from orderdp.policies.registry import RECORDED

__all__ = [
    "ProxyOptions",
    "StaticChoice",
    "check_plan",
    "check_task",
    "choose",
    "is_recorded",
    "is_static",
    "make_proxy",
    "plan_for",
    "recorded_batch",
]


_CORESET_FILE = "selection.npz"


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
    file = folder / _CORESET_FILE
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
        raise StateError(f"the coreset in {str(file)!r} is damaged ({error}). Remove it to select again.") from error


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


_PLAN_FILE = "plan.npz"


@dataclass(frozen=True)
class ProxyOptions:
    """Parameters of the policy.

    Attributes:
        proxy_width: Width of the proxy; None for a quarter of the model's width, rounded down and at least 1.
        backward_every: The proxy trains on one of this many batches, and marks all of them.
    """

    proxy_width: int | None = None
    backward_every: int = 4

    def __post_init__(self) -> None:
        for name in ("proxy_width", "backward_every"):
            value = getattr(self, name)
            if not is_count(value) and not (name == "proxy_width" and value is None):
                raise ConfigError(f"{name} must be a whole number, at least 1, got {value!r}.")

    @classmethod
    def of(cls, settings: Settings) -> ProxyOptions:
        """Return the options of a run."""
        known = list(inspect.signature(cls).parameters)
        for name in settings.policy_parameters:
            if name not in known:
                raise ConfigError(f"policy {settings.policy!r} has no parameter {name!r}.{suggestion(name, known)}")
        return cls(**settings.policy_parameters)


def is_recorded(policy: str) -> bool:
    """Whether the policy of this name replays a plan that a proxy of the run records."""
    return policy in RECORDED


def check_plan(settings: Settings) -> None:
    """Raise if the settings do not allow a plan."""
    options = ProxyOptions.of(settings)
    if settings.prune_ratio is None:
        raise ConfigError(f"policy {settings.policy!r} needs a prune ratio.")
    if settings.mixup or settings.cutmix:
        raise ConfigError(
            "MixUp and CutMix blend the images of a batch, and the proxy has other batches than the run: "
            f"{settings.policy!r} would score images that are not trained on. Leave MixUp and CutMix out."
        )
    if settings.flip == "alternate":
        raise ConfigError(
            "flip='alternate' depends on how often a run has trained on a sample, and the proxy trains on other "
            f"samples: {settings.policy!r} would score images that are not trained on. Use flip='random'."
        )
    if settings.task is None and options.proxy_width is None:
        quarter_width(settings.model, settings.width)


def check_task(settings: Settings, task: Task) -> None:
    """Raise if the data or the task do not allow a plan."""
    from orderdp.experiments.tasks import FolderTask

    if not hasattr(task, "build_proxy"):
        raise ConfigError(
            f"policy {settings.policy!r} needs a task with build_proxy(seed, width), a small model. "
            "See orderdp.experiments.tasks.Task."
        )
    if isinstance(task, FolderTask) and settings.augment:
        raise ConfigError(
            "images of a folder are augmented at random while they are read, so a run would not see those that the "
            f"proxy scored. Use {settings.policy!r} with --no-augment there."
        )
    _recorder(settings, task)


def recorded_batch(settings: Settings, keep: float) -> int:
    """Return the batch size of the proxy; the samples kept of one proxy batch make one step of the run.

    With ``steps="same"`` the proxy has the batch size of full data; with ``steps="fewer"`` a larger one.
    """
    return settings.batch_size if settings.steps == "same" else round(settings.batch_size / keep)


def plan_for(
    settings: Settings,
    task: Task,
    folder: Path,
    device: torch.device,
    watch: Callable[[float, int, float | None], None] = lambda done, epochs, metric: None,
) -> StaticChoice:
    """Return the policy of the run; its plan is recorded once, and read again when the run is resumed.

    Args:
        settings: Ratio, epochs, batch size and proxy.
        task: Data and model.
        folder: Folder of the run.
        device: Device on which the proxy is trained.
        watch: Called after every step of the proxy, with 0 epochs of the run done.
    """
    check_task(settings, task)
    file = folder / _PLAN_FILE
    if not file.exists():
        try:
            _recorded(settings, task, device, watch).save(file)
        except NonFiniteLossError as error:
            return StaticChoice(FullData(), 0.0, failed=str(error).partition(". ")[0])
    try:
        plan = Plan.load(file)
    except StateError as error:
        raise StateError(f"{error} Remove the file to do so.") from error
    samples = {"forward": plan.cost.forwarded, "backward": plan.cost.backpropagated}
    return StaticChoice(Replay(plan), plan.cost.seconds, plan.kept, samples)


def _recorder(settings: Settings, task: Task) -> PlanRecorder:
    keep = round(1 - (settings.prune_ratio or 0.0), 12)
    size = recorded_batch(settings, keep)
    return PlanRecorder(task.train_set, epochs=settings.epochs, batch_size=size, keep=keep, seed=settings.seed)


def _recorded(
    settings: Settings, task: Task, device: torch.device, watch: Callable[[float, int, float | None], None]
) -> Plan:
    """Record the plan. The proxy has the run's optimizer and learning rates, and trains on the samples it marks."""
    start = time.perf_counter()
    options, recorder = ProxyOptions.of(settings), _recorder(settings, task)
    proxy = cast("Task", _Proxy(task, options.proxy_width, options.backward_every))
    state = train_state(replace(settings, average=False), proxy, device)
    steps, scale = recorder.epochs * recorder.batches, recorder.kept / settings.batch_size
    batch = 0  # number of the batch, over all epochs

    def feedback(index: torch.Tensor, found: Losses) -> torch.Tensor | None:
        losses = found.losses.float()
        scores = losses if found.scores is None else found.scores
        marked = recorder.record(index, scores, backward=len(index) if losses.requires_grad else 0)
        # losses[marked] would make the host wait for the device.
        return (losses * marked).sum() / recorder.kept if losses.requires_grad else None

    def done() -> float:
        return batch / max(1, steps - 1)

    with GlobalGenerators.seeded(settings.seed, device).used(device):
        while recorder.epoch < recorder.epochs:
            state.train()
            batches = task_batches(task, cast("Pruner", _Shown(recorder)), recorder.batch_size, recorder.seed)
            while state.train_step(batches, feedback, done=done, scale=scale):
                batch += 1
                watch(0.0, settings.epochs_run, None)
    plan = recorder.plan
    return replace(plan, cost=plan.cost._replace(seconds=time.perf_counter() - start))


class _Proxy:
    """A task whose model is the proxy; one of `backward_every` forward passes is for training."""

    def __init__(self, task: Any, width: int | None, backward_every: int) -> None:
        self._task, self._width, self._backward_every = task, width, backward_every
        self._passes = 0

    def build_model(self, seed: int) -> nn.Module:
        model: nn.Module = self._task.build_proxy(seed, self._width)
        return model

    def losses(self, model: nn.Module, batch: Any) -> Any:
        learns = self._passes % self._backward_every == 0
        self._passes += 1
        with torch.set_grad_enabled(learns):
            return self._task.losses(model, batch)


class _Shown:
    """Gives a recorder the methods that a task calls on a pruner."""

    def __init__(self, recorder: PlanRecorder) -> None:
        self._recorder = recorder

    @property
    def epoch(self) -> int:
        return self._recorder.epoch

    def batch_sampler(self, batch_size: int, drop_last: bool = False) -> Sampler[list[int]]:
        return self._recorder.batch_sampler

    def loader(self, dataset: Any, batch_size: int, drop_last: bool = False, **options: Any) -> DataLoader[Any]:
        return self._recorder.loader(dataset, **options)
