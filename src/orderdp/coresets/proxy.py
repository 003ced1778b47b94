"""The proxy: a model trained once, whose recordings all coreset methods use."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from orderdp._draw import generator, key64
from orderdp._files import replacing, write_text
from orderdp._training import GlobalGenerators, TrainState, build_optimizer
from orderdp._validation import check_batch_size, check_ratio, checked_seed, is_count, suggestion
from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.coresets.sources import LARGEST, Labeled, Requirements, check_finite
from orderdp.errors import ConfigError, DatasetError, StateError, install_command
from orderdp.pruner import checked_labels

__all__ = [
    "FeatureHook",
    "Proxy",
    "ProxyTrainer",
    "Recipe",
    "Samples",
    "Store",
    "find_head",
    "own_generators",
    "record",
    "train_epoch",
]


#: None for no output, True for a progress bar, or a function of (what, done, total).
Progress: TypeAlias = Callable[[str, int, int], None] | bool | None


def _check_progress(progress: Any) -> None:
    """Raise unless `progress` is valid and can be used in this environment."""
    if progress is True:
        try:
            import rich.progress  # noqa: F401
        except ImportError:
            raise ConfigError(f"a progress bar needs rich, which is not installed: {install_command('cli')}") from None
    elif progress not in (None, False) and not callable(progress):
        raise ConfigError(f"progress must be True, None or a function of (what, done, total), got {progress!r}.")


@contextmanager
def _reported(progress: Progress, what: str, total: int) -> Iterator[Callable[[], None]]:
    """Yield a function to call after each of `total` steps."""
    if progress is True:
        with _bar(what, total) as step:
            yield step
        return
    done = 0

    def step_on() -> None:
        nonlocal done
        done += 1
        if callable(progress):
            progress(what, done, total)

    yield step_on


@contextmanager
def _bar(what: str, total: int) -> Iterator[Callable[[], None]]:
    from rich.progress import Progress as Bars

    with Bars(transient=True) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


#: Training state of a proxy: indices; inputs and labels; logits and labels.
ProxyState: TypeAlias = "TrainState[np.ndarray, tuple[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Training of the proxy: plain SGD with a constant learning rate, without augmentation.

    Args:
        lr: Learning rate.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of SGD.
        nesterov: Whether to use Nesterov momentum.
        batch_size: Samples per step.
        seed: Seed of the initial weights and of the sample order.
    """

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = True
    batch_size: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        check_batch_size(self.batch_size)
        check_ratio("momentum", self.momentum)
        checked_seed(self.seed)
        for name, least in (("lr", "above"), ("weight_decay", "at least")):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value < float("inf") or (least == "above" and value == 0):
                raise ConfigError(f"{name} must be a number, {least} 0, got {value!r}.")

    def state(self, model: nn.Module) -> ProxyState:
        """Return the training state of a new model."""
        nesterov = self.nesterov and self.momentum > 0
        optimizer = build_optimizer(
            "sgd", model, lr=self.lr, momentum=self.momentum, nesterov=nesterov, weight_decay=self.weight_decay
        )
        return TrainState(model, optimizer, lambda model, batch: (model(batch[0]), batch[1]), lr=self.lr)

    def order(self, n: int, init: int, epoch: int) -> list[np.ndarray]:
        """Batches of an epoch; epochs count from 1."""
        order = generator(self.seed, "proxy", init, "order", epoch).permutation(n)
        batches = np.split(order, range(self.batch_size, n, self.batch_size))
        if len(batches) > 1 and len(batches[-1]) == 1:
            # Batch norm cannot be trained on a single sample.
            batches[-2:] = [np.concatenate(batches[-2:])]
        return batches


@contextmanager
def own_generators(seed: int, *tags: int | str, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for one purpose, and restore them afterwards.

    Layers draw initial weights, and dropout its masks, from torch's global generators: there is no other way to make
    them depend on a seed.
    """
    key = key64(seed, *tags) >> 1
    with GlobalGenerators.seeded(key, device).used(device):
        yield


@torch.enable_grad()  # features may be requested where gradients are disabled
def train_epoch(
    state: ProxyState, samples: Samples, batches: list[np.ndarray], device: torch.device, after_step: Callable[[], None]
) -> np.ndarray:
    """Train on each batch; return which samples were predicted correctly at their step."""
    correct = np.zeros(samples.n, dtype=np.bool_)
    last = torch.zeros(())

    def feedback(indices: np.ndarray, found: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        nonlocal last
        logits, labels = found
        last = nn.functional.cross_entropy(logits, labels)
        correct[indices] = (logits.argmax(1) == labels).cpu().numpy()
        return last

    placed = ((indices, (x.to(device), y.to(device))) for indices, x, y in samples.batches(batches))
    state.train()
    while state.train_step(placed, feedback):
        after_step()
    if not torch.isfinite(last):
        raise ConfigError(f"the proxy's training has diverged: its loss is {last.item()}. Give it a smaller lr.")
    return correct


_VERSION = 2


class Store:
    """Folder of recordings.

    Args:
        folder: Path; None for a temporary folder that is deleted with the store.
    """

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self.folder = Path(mkdtemp(prefix="orderdp-proxy-") if folder is None else folder)
        if folder is None:
            weakref.finalize(self, shutil.rmtree, self.folder, True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.seconds: dict[str, float] = {}

    def open(self, identity: Mapping[str, Any]) -> None:
        """Claim the folder; raise if it belongs to another `identity`.

        Args:
            identity: What the recordings depend on, as plain values.
        """
        path = self.folder / "proxy.json"
        wanted = {"version": _VERSION, **identity}
        if not path.exists():
            self._identity = wanted
            self._write_index()
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            self._identity, self.seconds = found["identity"], found["seconds"]
        except (ValueError, KeyError, TypeError) as error:
            raise StateError(f"{path} is damaged ({error}). Use another folder, or remove this one.") from None
        for name, value in wanted.items():
            if self._identity.get(name) != value:
                raise StateError(
                    f"the recordings in {self.folder} belong to another proxy: {name} must be {value!r}, it was "
                    f"{self._identity.get(name)!r}. Use another folder, or remove this one."
                )

    def has(self, name: str) -> bool:
        """Whether there is an array of that name."""
        return (self.folder / f"{name}.npy").exists()

    def load(self, name: str) -> np.ndarray:
        """Return an array, memory-mapped from its file."""
        array: np.ndarray = np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array

    @contextmanager
    def writing(self, name: str, shape: tuple[int, ...], dtype: Any) -> Iterator[np.ndarray]:
        """Open a memory-mapped array to fill; the file is kept if the block does not raise."""
        path = self.folder / f"{name}.npy"
        with replacing(path) as temporary:
            array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
            yield array
            array.flush()

    def has_checkpoint(self, name: str) -> bool:
        """Whether there is a checkpoint of that name."""
        return (self.folder / f"{name}.pt").exists()

    def load_checkpoint(self, name: str) -> dict[str, Any]:
        """Load tensors and plain values."""
        return load_checkpoint(self.folder / f"{name}.pt")

    def save_checkpoint(self, name: str, state: Mapping[str, Any]) -> None:
        """Save tensors and plain values."""
        save_checkpoint(self.folder / f"{name}.pt", state)

    def spent(self, name: str, seconds: float) -> None:
        """Store the time that a task took."""
        self.seconds[name] = seconds
        self._write_index()

    def _write_index(self) -> None:
        text = json.dumps({"identity": self._identity, "seconds": self.seconds}, indent=1)
        write_text(self.folder / "proxy.json", text)


@dataclass(frozen=True, eq=False)
class ProxyTrainer:
    """Train models on demand, resuming from the last stored epoch.

    Attributes:
        factory: Makes a new model.
        samples: The training data.
        recipe: Training parameters.
        store: Where checkpoints are stored.
        device: Device of the model.
        progress: Progress display.
        wanted_head: Name of the last linear layer, or None to find it.
    """

    factory: Callable[[], nn.Module]
    samples: Samples
    recipe: Recipe
    store: Store
    device: torch.device
    progress: Progress
    wanted_head: str | None

    def __post_init__(self) -> None:
        if not callable(self.factory) or isinstance(self.factory, nn.Module):
            raise ConfigError("model_factory must be a function that makes a fresh model, such as lambda: Net().")

    @cached_property
    def head(self) -> str:
        """Name of the last linear layer."""
        _, x, _ = next(self.samples.batches([np.arange(min(2, self.samples.n))]))
        with own_generators(self.recipe.seed, "proxy", "head", device=self.device):
            return find_head(self._fresh(0).eval(), x.to(self.device), self.wanted_head)

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """What the trained models depend on, as plain values."""
        return {
            "data": self.samples.fingerprint,
            "model": _digest(self._fresh(0)),
            "head": self.head,
            "recipe": repr(self.recipe),
        }

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Width of the features and number of classes."""
        layer = self._fresh(0).get_submodule(self.head)
        assert isinstance(layer, nn.Linear)
        return layer.in_features, layer.out_features

    def after(self, epoch: int, init: int) -> nn.Module:
        """Return a model after `epoch` epochs, in evaluation mode."""
        self.train(epoch, init)
        model = self._fresh(init)
        model.load_state_dict(self.store.load_checkpoint(f"model-{init}-{epoch}"))
        return model.eval()

    def train(self, epoch: int, init: int) -> None:
        """Train a model up to `epoch` epochs, unless that is stored already."""
        if self.store.has_checkpoint(f"model-{init}-{epoch}"):
            return
        self._check_classes()
        model = self._fresh(init)
        state, done = self.recipe.state(model), 0
        if self.store.has_checkpoint(f"latest-{init}"):
            latest = self.store.load_checkpoint(f"latest-{init}")
            done = latest["epoch"]
            model.load_state_dict(self.store.load_checkpoint(f"model-{init}-{done}"))
            state.optimizer.load_state_dict(latest["optimizer" if "optimizer" in latest else "optimiser"])
        else:
            self.store.save_checkpoint(f"model-{init}-0", model.state_dict())
        for number in range(done + 1, epoch + 1):
            self._train_epoch(state, init, number)

    def correct(self, epochs: int, init: int) -> np.ndarray:
        """Which samples were predicted correctly when they were trained on, (epochs, n)."""
        self.train(epochs, init)
        return np.stack([self.store.load(f"correct-{init}-{epoch}") for epoch in range(1, epochs + 1)])

    def _train_epoch(self, state: ProxyState, init: int, epoch: int) -> None:
        start = time.perf_counter()
        batches = self.recipe.order(self.samples.n, init, epoch)
        with (
            own_generators(self.recipe.seed, "proxy", init, "train", epoch, device=self.device),
            _reported(self.progress, f"proxy: model {init + 1}, epoch {epoch}", len(batches)) as step,
        ):
            correct = train_epoch(state, self.samples, batches, self.device, step)
        with self.store.writing(f"correct-{init}-{epoch}", correct.shape, np.bool_) as file:
            file[:] = correct
        self.store.save_checkpoint(f"model-{init}-{epoch}", state.model.state_dict())
        # Last, so that the model it refers to exists.
        self.store.save_checkpoint(f"latest-{init}", {"epoch": epoch, "optimizer": state.optimizer.state_dict()})
        self.store.spent(f"train-{init}-{epoch}", time.perf_counter() - start)

    def _fresh(self, init: int) -> nn.Module:
        with own_generators(self.recipe.seed, "proxy", init, "weights", device=self.device):
            return self.factory().to(self.device)

    def _check_classes(self) -> None:
        if self.samples.labels.max() >= self.sizes[1]:
            raise DatasetError(
                f"labels go up to {self.samples.labels.max()}, but the model has {self.sizes[1]} outputs."
            )


def _digest(model: nn.Module) -> str:
    """Digest of a model's printed layers and of the shapes of its parameters."""
    # Some layers print functions and other objects with their address, which differs between processes.
    printed = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(model))
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    return f"{type(model).__name__} {blake2b(f'{printed}{shapes}'.encode(), digest_size=16).hexdigest()}"


def record(models: ProxyTrainer, samples: Samples, names: list[str], epoch: int, init: int) -> None:
    """Record the inputs and outputs of the last linear layer, or the outputs only.

    Args:
        models: The trainer that has the model and the store.
        samples: The data set.
        names: Names of the recordings: features and logits, or logits only.
        epoch: Number of trained epochs.
        init: Number of the model.
    """
    model, start = models.after(epoch, init), time.perf_counter()
    batches = samples.in_order(models.recipe.batch_size)
    shapes = [(samples.n, width) for width in models.sizes[-len(names) :]]
    with (
        ExitStack() as stack,
        FeatureHook(model, models.head) as tap,
        torch.no_grad(),
        _reported(models.progress, "proxy: recording", len(batches)) as step,
    ):
        writing = [models.store.writing(name, shape, np.float32) for name, shape in zip(names, shapes, strict=True)]
        files = [stack.enter_context(file) for file in writing]
        for indices, x, _ in samples.batches(batches):
            tap.check(model(x.to(models.device)))
            for file, block in zip(files, (tap.features, tap.logits)[-len(files) :], strict=True):
                file[indices] = block.float().cpu().numpy()
            step()
        for name, file in zip(names, files, strict=True):
            check_finite(f"the proxy's {name.split('-')[0]}", file, LARGEST)
    models.store.spent(names[0], time.perf_counter() - start)


def find_head(model: nn.Module, inputs: torch.Tensor, name: str | None = None) -> str:
    """Return the name of the last linear layer that a forward pass calls; check `name` if it is given.

    Checked before training: the layer must see one vector per sample, and its output must be the model's output.

    Args:
        model: A model in evaluation mode.
        inputs: A batch of inputs for it.
        name: Name of the module in ``model.named_modules()``.
    """
    linear = {key: module for key, module in model.named_modules() if isinstance(module, nn.Linear)}
    if name is not None and name not in linear:
        raise ConfigError(f"head must name an nn.Linear of the model, got {name!r}.{suggestion(name, linear)}")
    head = _last_called(model, inputs, linear if name is None else {name: linear[name]})
    if head is None:
        raise ConfigError(
            "the model's forward pass must use an nn.Linear, whose inputs are the features; it uses none."
            if name is None
            else (
                f"the model's forward pass must use the head {name!r}, it does not. Name another with "
                "Proxy(..., head=...)."
            )
        )
    # With noise: the output of a zero-initialized head would equal any scaling of it.
    with FeatureHook(model, head, noise=torch.Generator().manual_seed(0)) as tap, torch.no_grad():
        tap.check(model(inputs))
    return head


def _last_called(model: nn.Module, inputs: torch.Tensor, layers: Mapping[str, nn.Module]) -> str | None:
    called: list[str] = []
    hooks = [module.register_forward_hook(lambda *_, key=key: called.append(key)) for key, module in layers.items()]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return called[-1] if called else None


class FeatureHook:
    """Store the inputs and outputs of a linear layer while the context is open.

    Args:
        model: The model.
        head: Name of the layer.
        noise: Generator of noise that is added to each output; None for no noise.
    """

    def __init__(self, model: nn.Module, head: str, noise: torch.Generator | None = None) -> None:
        self._head = head
        self._noise = noise
        self._layer = model.get_submodule(head)
        self.features = self.logits = torch.empty(0)

    def __enter__(self) -> FeatureHook:
        self._hook = self._layer.register_forward_hook(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self._hook.remove()

    def check(self, output: Any) -> None:
        """Raise unless the model's output has the same probabilities as the layer's output.

        So a log-softmax after the layer is allowed, and a scale is not: methods that use the layer's output would work
        on a model other than the trained one.

        Args:
            output: Output of the model for the stored call.
        """
        if not isinstance(output, torch.Tensor):
            raise ConfigError(f"the model must give one tensor of logits, got {type(output).__name__}.")
        same = output.shape == self.logits.shape
        if same and _same_probabilities(self.logits, output):
            return
        raise ConfigError(
            f"the last linear layer must give the model's output, of shape {tuple(output.shape)}; {self._head!r} gives "
            f"{'other values' if same else tuple(self.logits.shape)}. Name the right one with Proxy(..., head=...), or "
            "give the proxy a model that ends with an nn.Linear."
        )

    def _keep(self, layer: nn.Module, inputs: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        if inputs[0].ndim != 2:
            raise ConfigError(
                f"the last linear layer must see one vector per sample, {self._head!r} sees shape "
                f"{tuple(inputs[0].shape)}. Name another one with Proxy(..., head=...)."
            )
        if self._noise is not None:
            output = output + torch.randn(output.shape, generator=self._noise).to(output)
        # A copy, because the modules after the layer may work in place.
        self.features, self.logits = inputs[0].detach(), output.detach().clone()
        return output


def _same_probabilities(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Equal up to rounding, which is coarser in half precision and for large logits. Recording finds NaN."""
    precision = max(torch.finfo(logits.dtype).eps if logits.is_floating_point() else 0.0 for logits in (first, second))
    ours, models = (logits.float().log_softmax(1) for logits in (first, second))
    tolerance = max(1e-4, 8 * precision)
    largest = first.float().abs().nan_to_num(0, 0, 0).max().item()
    return torch.allclose(ours, models, rtol=tolerance, atol=tolerance * max(1.0, largest), equal_nan=True)


_LOOKED_AT = 16


_DIGESTED_AT_ONCE = 1 << 24  # bytes


class Samples:
    """Data set of (inputs, label) pairs, without augmentation.

    Args:
        dataset: A map-style data set of pairs, a `TensorDataset`, or a pair of tensors.
        labels: One class per sample, if known: saves a pass over the data.
        workers: Processes that read a data set that is not made of tensors.
    """

    def __init__(self, dataset: Any, labels: Any = None, workers: int = 0) -> None:
        self._dataset, self._workers = dataset, workers
        self._tensors = _tensors_of(dataset)
        try:
            self.n = len(dataset if self._tensors is None else self._tensors[0])
        except TypeError:
            raise DatasetError(f"the data set must have a length, {type(dataset).__name__} has none.") from None
        if self.n == 0:
            raise DatasetError("the data set must not be empty, it has no samples.")
        self._known_labels = checked_labels(labels, self.n)
        if self._tensors is None:
            _checked_pair(dataset[0])

    @cached_property
    def labels(self) -> np.ndarray:
        """One class per sample, from 0 on."""
        labels = self._known_labels
        if labels is None:
            labels = self._declared_labels() if self._tensors is None else self._tensors[1].cpu().numpy()
        if labels is None:
            labels = np.concatenate([y.numpy() for _, _, y in self.batches(self.in_order(256))])
        if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
            raise DatasetError(
                f"labels must be one whole number from 0 on for each sample, got {labels.dtype} {labels.shape}."
            )
        return labels.astype(np.int64)

    @cached_property
    def checksum(self) -> str:
        """Digest of the length, all labels and some inputs. Does not depend on the type of the data set."""
        first, second = (_bytes(self._some()[1]) for _ in range(2))
        if first != second:
            raise DatasetError(
                "the data set must give the same samples each time they are read, it gives different ones. "
                "The proxy is trained without augmentation: switch it off."
            )
        digest = blake2b(digest_size=16)
        for part in (str(self.n).encode(), self.labels.tobytes(), first):
            digest.update(part)
        return digest.hexdigest()

    @cached_property
    def fingerprint(self) -> str:
        """Identity of the recordings: the checksum and, for tensors, a digest of all inputs."""
        if self._tensors is None:
            return self.checksum
        inputs = self._tensors[0]
        digest = blake2b(f"{inputs.dtype} {tuple(inputs.shape)}".encode(), digest_size=16)
        rows = max(1, _DIGESTED_AT_ONCE // max(1, inputs[0].numel() * inputs.element_size()))
        for start in range(0, self.n, rows):
            digest.update(_bytes(inputs[start : start + rows]))
        return f"{self.checksum}-{digest.hexdigest()}"

    def is_same_as(self, other: Samples) -> bool:
        """Whether the samples are equal: compares all of them if both are tensors, else the checksums."""
        if self._tensors is None or other._tensors is None:
            return self.checksum == other.checksum
        return self.fingerprint == other.fingerprint

    def in_order(self, batch_size: int) -> list[np.ndarray]:
        """Indices of all samples, in batches."""
        return np.split(np.arange(self.n), range(batch_size, self.n, batch_size))

    def batches(self, indices: Iterable[np.ndarray]) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Yield each batch with its indices."""
        if self._tensors is not None:
            x, y = self._tensors
            for batch in indices:
                positions = torch.from_numpy(batch)
                yield batch, x[positions], _long(y[positions])
            return
        wanted = [batch.tolist() for batch in indices]
        loader: DataLoader[Any] = DataLoader(
            self._dataset, batch_sampler=wanted, num_workers=self._workers, generator=torch.Generator()
        )
        for batch, (inputs, labels) in zip(wanted, loader, strict=True):
            yield np.array(batch), inputs, _long(torch.as_tensor(labels))

    def _some(self) -> tuple[np.ndarray, torch.Tensor, torch.Tensor]:
        """A few samples, evenly spaced over the data set."""
        return next(self.batches([np.unique(np.linspace(0, self.n - 1, _LOOKED_AT).astype(np.int64))]))

    def _declared_labels(self) -> np.ndarray | None:
        """``dataset.targets``, as in torchvision, if it agrees with some of the items; else None."""
        declared = np.asarray(getattr(self._dataset, "targets", None))
        if declared.shape != (self.n,) or not np.issubdtype(declared.dtype, np.integer):
            return None
        positions, _, labels = self._some()
        return declared if np.array_equal(declared[positions], labels.numpy()) else None


def _bytes(inputs: torch.Tensor) -> bytes:
    # Bytes before numpy sees them: numpy does not have all dtypes of torch.
    return inputs.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _long(labels: torch.Tensor) -> torch.Tensor:
    """Convert integers to int64 for the loss; leave other types unchanged, so that the check sees them."""
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    return labels.long() if whole else labels


def _tensors_of(dataset: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    given = dataset.tensors if isinstance(dataset, TensorDataset) else dataset
    if not (isinstance(given, tuple | list) and all(isinstance(part, torch.Tensor) for part in given)):
        return None
    if len(given) != 2 or len(given[0]) != len(given[1]):
        shapes = [tuple(part.shape) for part in given]
        raise DatasetError(f"tensors must be inputs and labels of the same length, got {shapes}.")
    return given[0], given[1]


def _checked_pair(item: Any) -> None:
    if not (isinstance(item, tuple | list) and len(item) == 2):
        raise DatasetError(
            f"items of the data set must be (inputs, label), got {type(item).__name__}. The proxy needs the labels."
        )


class Proxy:
    """Train a model on all data and record what methods require, each recording once.

    Nothing is trained before it is requested. Models and recordings stay in a folder, so ten methods cost one training,
    and an interrupted run resumes.

    Args:
        model_factory: Makes a new model: inputs in, one logit per class out.
        dataset: Pairs (inputs, label), as a map-style data set or a pair of tensors, without augmentation.
        labels: One class per sample, if known: saves a pass over the data.
        validation: A second data set, for methods that require one.
        epochs: Epochs that a model is trained.
        inits: Number of models, each with its own initial weights. They are trained when they are requested.
        head: Name of the last linear layer; found by a forward pass if None.
        cache: Folder for the recordings; None for a temporary one.
        device: Device of the model.
        workers: Processes that read the data, if it is not made of tensors.
        progress: True for a progress bar, or a function of (what, done, total).
        recipe: Parameters of `Recipe`: lr, momentum, weight_decay, nesterov, batch_size, seed.
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
        _check_progress(progress)
        self.epochs, self.inits, self.recipe = epochs, inits, Recipe(**_known(recipe))
        self._device = torch.device(device)
        self._samples = Samples(dataset, labels, workers)
        self._validation = None if validation is None else Samples(validation, None, workers)
        self._store = Store(cache)
        self._models = ProxyTrainer(
            model_factory, self._samples, self.recipe, self._store, self._device, progress, head
        )
        self._store.open(self._models.identity)

    @property
    def n(self) -> int:
        """Number of samples."""
        return self._samples.n

    @property
    def labels(self) -> np.ndarray:
        """One class per sample."""
        return self._samples.labels

    @property
    def checksum(self) -> str:
        """Digest that identifies the data set."""
        return self._samples.checksum

    @property
    def seconds(self) -> float:
        """Time of all training and recording, earlier runs included."""
        return sum(self._store.seconds.values())

    def verify(self, dataset: Any, labels: Any = None) -> None:
        """Raise unless `dataset` is the one this proxy was made for.

        Args:
            dataset: The data set to compare.
            labels: One class per sample, if known: saves a pass over the data.
        """
        other = Samples(dataset, labels)
        if other.n != self.n:
            raise DatasetError(f"this proxy was made for {self.n} samples, the data set has {other.n}.")
        if not self._samples.is_same_as(other):
            raise DatasetError("this proxy was made for other data: as many samples, but not the same ones.")

    def check(self, needs: Requirements, who: str) -> None:
        """Raise if `needs` require more epochs or models than this proxy has.

        Args:
            needs: Requirements of a method.
            who: Name of the method, for messages.
        """
        if needs.scores:
            raise DatasetError(f"{who} needs precomputed scores. Give it Arrays(scores=...).")
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
        """Inputs of the last linear layer, (n, width).

        Args:
            epoch: Number of trained epochs; None for all.
            init: Number of the model.
        """
        return self._recorded("features", epoch, init)

    def logits(self, epoch: int | None = None, init: int = 0) -> np.ndarray:
        """Outputs of the last linear layer, (n, classes).

        Args:
            epoch: Number of trained epochs; None for all.
            init: Number of the model.
        """
        return self._recorded("logits", epoch, init)

    def correct(self, init: int = 0) -> np.ndarray:
        """Whether each sample was predicted correctly when it was trained on, (epochs, n).

        Args:
            init: Number of the model.
        """
        return self._models.correct(self.epochs, init)

    def scores(self) -> np.ndarray:
        """Not available: a proxy has no precomputed scores."""
        raise DatasetError("a proxy has no precomputed scores. Use Arrays(scores=...).")

    def checkpoints(self) -> Sequence[int]:
        """Epochs with recordings: after each one."""
        return range(1, self.epochs + 1)

    def validation(self) -> Labeled | None:
        """Features, logits and labels of the validation set; None without one."""
        if self._validation is None:
            return None
        names = self._validation_names()
        if not all(map(self._store.has, names)):
            record(self._models, self._validation, names, self.epochs, 0)
        return Labeled(self._store.load(names[0]), self._store.load(names[1]), self._validation.labels)

    def model(self, epoch: int | None = None, init: int = 0) -> nn.Module:
        """Return the model after `epoch` epochs, in evaluation mode.

        Args:
            epoch: Number of trained epochs; None for all.
            init: Number of the model.
        """
        return self._models.after(self._moment(epoch, init), init)

    def batches(self) -> Iterator[tuple[np.ndarray, torch.Tensor, torch.Tensor]]:
        """Yield all samples in order, on the model's device: indices, inputs, labels."""
        for indices, x, y in self._samples.batches(self._samples.in_order(self.recipe.batch_size)):
            yield indices, x.to(self._device), y.to(self._device)

    def seconds_for(self, needs: Requirements) -> float:
        """Time of the trainings and passes that `needs` require, whether or not another method caused them."""
        if needs.nothing:
            return 0.0
        last = self.epochs if needs.epoch is None else needs.epoch
        moments = set(self.checkpoints()) if needs.every_epoch else {last}
        models = range(self.inits if needs.inits is None else needs.inits)
        seconds = self._store.seconds
        total = sum(seconds.get(f"train-{init}-{epoch}", 0.0) for init in models for epoch in range(1, last + 1))
        for init in models:
            for epoch in moments:
                # A pass for features records logits too.
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
            # Logits come with the features at no cost, but not vice versa.
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
                f"this proxy has models 0 to {self.inits - 1} after 0 to {self.epochs} epochs, got model {init} after "
                f"{moment}."
            )
        return moment


def _known(recipe: dict[str, Any]) -> dict[str, Any]:
    known = list(inspect.signature(Recipe).parameters)
    for name in recipe:
        if name not in known:
            raise ConfigError(f"a proxy has no parameter {name!r}.{suggestion(name, known)}")
    return recipe
