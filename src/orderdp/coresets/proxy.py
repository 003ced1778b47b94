"""The proxy: one model, trained once, of which every method asks what it needs."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from orderdp.coresets.models import Models
from orderdp.coresets.needs import Needs
from orderdp.coresets.progress import Progress, check_progress
from orderdp.coresets.recording import record
from orderdp.coresets.samples import Samples
from orderdp.coresets.source import Labelled
from orderdp.coresets.store import Store
from orderdp.coresets.training import Recipe
from orderdp.errors import ConfigError, DatasetError
from orderdp.naming import suggestion
from orderdp.planning import is_count

__all__ = ["Proxy"]


class Proxy:
    """Trains a model on all data and records what methods ask for, each thing once.

    Nothing is trained before something is asked for. What was trained and recorded stays in a folder, so ten methods
    cost one training, and a run that was stopped goes on where it was.

    Args:
        model_factory: Makes a fresh model: inputs in, one logit a class out.
        dataset: Pairs (inputs, label), as a map-style data set or a pair of tensors, without augmentation.
        labels: One class for each sample, where it is known: saves a pass over the data.
        validation: A second data set, for methods that want one.
        epochs: How long a model is trained.
        inits: How many models there are, each from weights of its own. They are trained when they are asked for.
        head: Name of the last linear layer; found by a forward pass where it is not given.
        cache: Folder for what is recorded; None for a temporary one.
        device: Where the model runs.
        workers: Processes that read the data, where it is not made of tensors.
        progress: True for a bar in the terminal, or a function of (what, done, total).
        recipe: The parameters of `Recipe`: lr, momentum, weight_decay, nesterov, batch_size, seed.
    """

    def __init__(
        self,
        model_factory: Callable[[], nn.Module],
        dataset: Any,
        *,
        labels: Any = None,
        validation: Any = None,
        epochs: int = 10,
        inits: int = 1,
        head: str | None = None,
        cache: str | os.PathLike[str] | None = None,
        device: str | torch.device = "cpu",
        workers: int = 0,
        progress: Progress = None,
        **recipe: Any,
    ) -> None:
        for name, value in (("epochs", epochs), ("inits", inits)):
            if not is_count(value):
                raise ConfigError(f"{name} must be a whole number, at least 1, got {value!r}.")
        check_progress(progress)
        self.epochs, self.inits, self.recipe = epochs, inits, Recipe(**_known(recipe))
        self._device = torch.device(device)
        self._samples = Samples(dataset, labels, workers)
        self._validation = None if validation is None else Samples(validation, None, workers)
        self._store = Store(cache)
        self._models = Models(model_factory, self._samples, self.recipe, self._store, self._device, progress, head)
        self._store.open(self._models.identity)

    @property
    def n(self) -> int:
        """Number of samples."""
        return self._samples.n

    @property
    def labels(self) -> np.ndarray:
        """One class for each sample."""
        return self._samples.labels

    @property
    def checksum(self) -> str:
        """Tells the data set from others."""
        return self._samples.checksum

    @property
    def seconds(self) -> float:
        """What all training and recording has taken, in earlier runs too."""
        return sum(self._store.seconds.values())

    def verify(self, dataset: Any, labels: Any = None) -> None:
        """Raises unless `dataset` is the one this proxy was made for."""
        other = Samples(dataset, labels)
        if other.n != self.n:
            raise DatasetError(f"this proxy was made for {self.n} samples, the data set has {other.n}.")
        if not self._samples.is_same_as(other):
            raise DatasetError("this proxy was made for other data: as many samples, but not the same ones.")

    def check(self, needs: Needs, who: str) -> None:
        """Raises where more epochs or models are asked for than there will be."""
        if needs.scores:
            raise DatasetError(f"{who} needs scores made elsewhere. Give it Arrays(scores=...).")
        if needs.epoch is not None and needs.epoch > self.epochs:
            raise ConfigError(
                f"{who} needs the model after {needs.epoch} epochs, this proxy is trained for {self.epochs}. "
                f"Make it with Proxy(..., epochs={needs.epoch})."
            )
        if needs.correct and self.epochs < 2:
            raise ConfigError(f"{who} needs at least 2 epochs, this proxy is trained for {self.epochs}.")
        if needs.inits is not None and needs.inits > self.inits:
            raise ConfigError(
                f"{who} needs {needs.inits} models, this proxy has {self.inits}. "
                f"Make it with Proxy(..., inits={needs.inits})."
            )

    def features(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Inputs of the last linear layer, (n, width)."""
        return self._recorded("features", epoch, init)

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes)."""
        return self._recorded("logits", epoch, init)

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether each sample was right when it was trained on, (epochs, n)."""
        return self._models.correct(self.epochs, init)

    def scores(self) -> np.ndarray:
        """There are none."""
        raise DatasetError("a proxy has no scores made elsewhere. Use Arrays(scores=...).")

    def checkpoints(self) -> Sequence[int]:
        """After each epoch."""
        return range(1, self.epochs + 1)

    def validation(self) -> Labelled | None:
        """Features, logits and labels of the validation set, where there is one."""
        if self._validation is None:
            return None
        names = self._validation_names()
        if not all(map(self._store.has, names)):
            record(self._models, self._validation, names, self.epochs, 0)
        return Labelled(self._store.load(names[0]), self._store.load(names[1]), self._validation.labels)

    def model(self, epoch: int | None = None, init: int = 0) -> nn.Module:
        """The model after so many epochs, in evaluation mode."""
        return self._models.after(self._moment(epoch, init), init)

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """All samples in order, where the model is."""
        for indices, x, y in self._samples.batches(self._samples.in_order(self.recipe.batch_size)):
            yield indices, x.to(self._device), y.to(self._device)

    def seconds_for(self, needs: Needs) -> float:
        """What the trainings and passes took that `needs` asks for, whoever asked first."""
        if needs.nothing:
            return 0.0
        last = self.epochs if needs.epoch is None else needs.epoch
        moments = set(self.checkpoints()) if needs.every_epoch else {last}
        models = range(self.inits if needs.inits is None else needs.inits)
        seconds = self._store.seconds
        total = sum(seconds.get(f"train-{init}-{epoch}", 0.0) for init in models for epoch in range(1, last + 1))
        for init in models:
            for epoch in moments:
                # A pass for features brings logits too.
                with_features = seconds.get(f"features-{init}-{epoch}", 0.0)
                alone = seconds.get(f"logits-{init}-{epoch}", with_features)
                total += with_features if needs.features else alone if needs.logits else 0.0
        if needs.validation and self._validation is not None:
            total += seconds.get(self._validation_names()[0], 0.0)
        return total

    def _recorded(self, kind: str, epoch: int | None, init: int) -> np.ndarray:
        epoch = self._moment(epoch, init)
        name = f"{kind}-{init}-{epoch}"
        if not self._store.has(name):
            # Logits come with the features for nothing, but not the other way round.
            kinds = ("features", "logits") if kind == "features" else ("logits",)
            record(self._models, self._samples, [f"{k}-{init}-{epoch}" for k in kinds], epoch, init)
        return self._store.load(name)

    def _validation_names(self) -> list[str]:
        assert self._validation is not None
        return [f"{kind}-validation-{self._validation.fingerprint}" for kind in ("features", "logits")]

    def _moment(self, epoch: int | None, init: int) -> int:
        moment = self.epochs if epoch is None else epoch
        if not (0 <= moment <= self.epochs and 0 <= init < self.inits):
            raise ConfigError(
                f"this proxy has models 0 to {self.inits - 1} after 0 to {self.epochs} epochs, model {init} after "
                f"{moment} was asked for."
            )
        return moment


def _known(recipe: dict[str, Any]) -> dict[str, Any]:
    known = list(inspect.signature(Recipe).parameters)
    for name in recipe:
        if name not in known:
            raise ConfigError(f"a proxy has no parameter {name!r}.{suggestion(name, known)}")
    return recipe
