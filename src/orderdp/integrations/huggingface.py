"""Hugging Face's Trainer: `PruningTrainer`, or `PruningMixin` in front of your own Trainer class.

The Trainer stays in control: it builds batches, distributes them to processes, accumulates gradients, and skips trained
batches on resume. The pruner selects the samples of each epoch and gets their losses. The models themselves return one
number for the whole batch; the losses here are the same, unreduced.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F
from torch.utils.data import Sampler

from orderdp._epochs import check_length
from orderdp.checkpoint import load_checkpoint, save_checkpoint
from orderdp.dataset import Indexed, length_of
from orderdp.errors import ConfigError, DatasetError, FeedbackError, StateError, install_command
from orderdp.losses import per_sample, predictions
from orderdp.policy import describe
from orderdp.pruner import Pruner
from orderdp.samplers import BatchIterator, PrunedBatchSampler
from orderdp.theory.plan import steps_within

if TYPE_CHECKING:
    from transformers import Trainer as _Trainer

    PruningTrainer: Any
    """Hugging Face's Trainer, training on what a pruner selects: `PruningMixin` in front of it."""
else:
    _Trainer = object  # a Trainer class follows the mixin

__all__ = [
    "HINT",
    "IGNORED",
    "INDEX",
    "SEGMENTS",
    "STATE_FILE",
    "EpochSampler",
    "IndexKeeper",
    "OwnLoss",
    "PruningMixin",
    "PruningTrainer",
    "check_loss_behind",
    "check_trainer",
    "entry",
    "label_counts",
    "label_losses",
    "needs_labels",
    "next_token_losses",
    "output_losses",
    "told",
]


# -- losses of the samples of a batch ---------------------------------------------------------------------------------


#: Label that Hugging Face's collators write where there is nothing to predict.
IGNORED = -100

#: What to do if the sample's loss cannot be computed from logits and labels.
HINT = "Give PruningTrainer(..., sample_losses=...), a function of (outputs, inputs) that returns one loss per sample."

INDEX = "orderdp_index"
"""Key of the samples' indices in a batch."""

#: Key of the sample of each token, in a batch whose samples share one row: its number in the batch, -1 for none.
SEGMENTS = "orderdp_segments"

# Packages whose models need no labels for their logits.
_LIBRARIES = ("transformers", "liger_kernel", "trl")

# Keys of `predictions`.
_PREDICTIONS = ("correct", "confidence", "probability")


def label_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    shift: bool = False,
    problem_type: str | None = None,
    label_smoothing: float = 0.0,
    segments: torch.Tensor | None = None,
    count: int | None = None,
) -> torch.Tensor:
    """Loss of each sample, for one class per sample, one class per token, regression, or several classes per sample.

    Tokens are averaged within their sequence, without those labeled -100.

    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0], [0.0, 0.0]]])
    >>> round(label_losses(logits, torch.tensor([[0, -100, 1]])).item(), 4)  # (0.0001 + 0.6931) / 2
    0.3466
    >>> round(label_losses(logits, torch.tensor([[0, 1, 1]]), shift=True).item(), 4)  # (9.0001 + 0.0001) / 2
    4.5001

    Args:
        logits: (batch, classes) or (batch, tokens, classes).
        labels: (batch,) or (batch, tokens); a number or a row of numbers per sample for regression or several classes.
        shift: Whether a token's logits predict the next token.
        problem_type: As in a model's config; inferred from the shapes if None.
        label_smoothing: Fraction of the target that is spread over all classes.
        segments: Sample of each label, if several samples share a row; as in `per_sample`.
        count: Number of samples in `segments`.
    """
    logits, labels = logits.float(), labels.to(logits.device)
    if logits.ndim == 2:
        kind = problem_type or _problem_type(logits, labels)
        if kind == "regression":
            return per_sample((logits - _like(logits, labels)).square())
        if kind == "multi_label_classification":
            return per_sample(F.binary_cross_entropy_with_logits(logits, _like(logits, labels), reduction="none"))
    if labels.shape != logits.shape[:-1] or labels.is_floating_point():
        raise FeedbackError(
            f"labels must be one class for each row of the logits {tuple(logits.shape)}, got {labels.dtype} of "
            f"{tuple(labels.shape)}. {HINT}"
        )
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
        segments = None if segments is None else segments[:, 1:]
    losses = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        ignore_index=IGNORED,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    return per_sample(losses.view(labels.shape), mask=labels != IGNORED, segments=segments, count=count)


def output_losses(model: Any, outputs: Any, inputs: Mapping[str, Any], *, label_smoothing: float = 0.0) -> torch.Tensor:
    """Loss of each sample of a batch, for models with logits and labels.

    Args:
        model: A Hugging Face model, without a wrapper that hides its class and config.
        outputs: Its outputs.
        inputs: Its batch, including the labels.
        label_smoothing: Fraction of the target that is spread over all classes.
    """
    logits, labels, shift, kind = _read(model, outputs, inputs)
    return label_losses(
        logits, labels, shift=shift, problem_type=kind, label_smoothing=label_smoothing, **_segments_of(inputs)
    )


def next_token_losses(outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Loss of each sample of a causal language model: its mean over tokens, in padded and in padding-free batches.

    For ``sample_losses`` of Trainer classes that compute the same loss in a way of their own, such as TRL's SFTTrainer.

    Args:
        outputs: Outputs of the model, with logits.
        inputs: Its batch, as `sample_losses` gets it.
    """
    logits = entry(outputs, "logits")
    if not isinstance(logits, torch.Tensor) or not isinstance(inputs.get("labels"), torch.Tensor):
        raise FeedbackError(
            f"a language model's loss needs logits and labels, got logits {_form(logits)} and a batch of "
            f"{sorted(inputs)}. {HINT}"
        )
    return label_losses(logits, inputs["labels"], shift=True, **_segments_of(inputs))


def label_counts(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> torch.Tensor:
    """Number of labels that each value of `output_losses` averages; the models weight a batch by these numbers.

    Args:
        model: A Hugging Face model, without a wrapper that hides its class and config.
        outputs: Its outputs.
        inputs: Its batch, including the labels.
    """
    logits, labels, shift, kind = _read(model, outputs, inputs)
    if SEGMENTS in inputs:
        segments: torch.Tensor = inputs[SEGMENTS]
        if shift:
            segments, labels = segments[:, 1:], labels[:, 1:]
        counted = segments[(labels != IGNORED) & (segments >= 0)]
        return counted.bincount(minlength=len(inputs[INDEX]))
    if logits.ndim == 2 and (kind or _problem_type(logits, labels)) != "single_label_classification":
        return torch.ones(len(labels), dtype=torch.int64, device=labels.device)
    return (labels[:, 1:] if shift else labels).ne(IGNORED).reshape(len(labels), -1).sum(1)


def told(outputs: Any, inputs: Mapping[str, Any], names: tuple[str, ...], policy: Any) -> dict[str, torch.Tensor]:
    """Extra values that a policy requires besides the losses, computed from logits and one class per sample.

    Args:
        outputs: Outputs of the model.
        inputs: Its batch, including the labels.
        names: Names of the values that the policy requires.
        policy: The policy, for the message if a value is not available.
    """
    wanted = [name for name in names if name in _PREDICTIONS]
    if not wanted:
        return {}
    logits, labels = entry(outputs, "logits"), inputs.get("labels")
    if labels is None or not _are_classes(logits, labels):
        raise ConfigError(
            f"{describe(policy)} needs {', '.join(wanted)} of each sample, which takes logits (batch, classes) and a "
            f"whole number per sample for its class, got logits {_form(logits)} and labels {_form(labels)}. Use a "
            "policy that needs losses only, such as OrderDP, or a training loop of your own that gives them to "
            "pruner.update."
        )
    known = predictions(logits, labels)
    return {name: known[name] for name in wanted}


def needs_labels(model: Any, inputs: Mapping[str, Any], label: str = "labels") -> bool:
    """Whether the model must get the labels at every step.

    Models of transformers do without, which saves their own loss. Of other models only their forward knows.

    Args:
        model: The model, without a wrapper that hides its class and config.
        inputs: Its batch.
        label: Name of the labels.
    """
    if not _takes(model, label):
        return False
    parameter = inspect.signature(model.forward).parameters.get(label)
    if parameter is None or parameter.default is inspect.Parameter.empty or not _from_a_library(model):
        return True
    # Some models build the decoder's input from the labels.
    makes_input = getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return bool(makes_input) and "decoder_input_ids" not in inputs


def _takes(model: Any, label: str) -> bool:
    """Whether the model's forward has a place for the labels; a model of transformers ignores other names."""
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return label in parameters or (takes_all and not _from_a_library(model))


def _from_a_library(model: Any) -> bool:
    """Whether the model's forward is one that computes no loss if it gets no labels."""
    home = getattr(inspect.unwrap(model.forward), "__module__", None) or ""
    return home.partition(".")[0] in _LIBRARIES


def _read(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor, bool, str | None]:
    """Logits, labels, whether a token's logits predict the next token, and the config's problem type."""
    logits = entry(outputs, "logits")
    if not isinstance(logits, torch.Tensor):
        has = sorted(outputs) if isinstance(outputs, Mapping) else type(outputs).__name__
        raise FeedbackError(f"the model's output must have logits, for each sample's loss, it has {has}. {HINT}")
    if entry(outputs, "aux_loss") is not None:
        raise ConfigError(
            "the model adds a loss of its own to that of the labels (aux_loss), which would be left out. Set "
            f"output_router_logits=False in its config. Or: {HINT}"
        )
    labels = inputs.get("shift_labels", inputs.get("labels"))
    if not isinstance(labels, torch.Tensor):
        has = sorted(name for name in inputs if not name.startswith("orderdp_"))
        raise FeedbackError(f"the batch must have labels, for each sample's loss, it has {has}. {HINT}")
    shift = logits.ndim > 2 and "shift_labels" not in inputs and _predicts_next(model)
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    return logits, labels, shift, kind


def _segments_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `label_losses` for a batch whose samples share a row."""
    return {"segments": inputs[SEGMENTS], "count": len(inputs[INDEX])} if SEGMENTS in inputs else {}


def entry(outputs: Any, name: str) -> Any:
    """Entry `name` of a model's outputs, or None. A tuple holds the loss, if there is one, and then the logits."""
    if type(outputs) is tuple:
        # Logits have a dimension for the batch and one for the classes, a loss has one at most.
        first = 1 if isinstance(outputs[0], torch.Tensor) and outputs[0].ndim < 2 else 0
        at = {"loss": first - 1, "logits": first}.get(name, -1)
        return outputs[at] if 0 <= at < len(outputs) else None
    return outputs.get(name) if isinstance(outputs, Mapping) else getattr(outputs, name, None)


def _are_classes(logits: Any, labels: Any) -> bool:
    """Whether the labels are one class per sample."""
    if not (isinstance(logits, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return False
    whole = not labels.is_floating_point() and not labels.is_complex()
    return logits.ndim == 2 and logits.shape[1] > 1 and labels.shape == logits.shape[:1] and whole


def _form(value: Any) -> str:
    return f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else str(value)


def _problem_type(logits: torch.Tensor, labels: torch.Tensor) -> str:
    """Infer the problem type by the rule of Hugging Face's own losses."""
    if logits.shape[1] == 1:
        return "regression"
    return "multi_label_classification" if labels.is_floating_point() else "single_label_classification"


def _like(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Labels with one number per logit."""
    if labels.numel() != logits.numel():
        raise FeedbackError(
            f"labels must have a number for each of the logits {tuple(logits.shape)}, got {tuple(labels.shape)}. {HINT}"
        )
    return labels.view_as(logits).to(logits.dtype)


def _predicts_next(model: Any) -> bool:
    """Whether the model predicts the next token; raise if that is unknown."""
    from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    if type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values():
        return True
    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None))
    if loss is None:
        raise ConfigError(
            f"{type(model).__name__} has a label for each token, and it is not known whether its logits predict that "
            f"token or the next. {HINT}"
        )
    return bool(loss is ForCausalLMLoss)


# -- is the loss that is trained on the model's own? it may add class weights or label smoothing ----------------------


# Class weights cancel in a batch of one class, so batches are compared until one has several; at most this many.
_MOST_BATCHES = 32

_HALF = (torch.float16, torch.bfloat16)


class OwnLoss:
    """Call the model; on the first batches that can tell them apart, compare its own loss with the samples' losses.

    For this the model gets the labels in the regular call, so its logits do not change, and dropout draws nothing more.

    Args:
        compare: Whether the two losses are expected to be equal.
        rough: Whether the model may compute in half precision without visible half-precision tensors.
    """

    def __init__(self, *, compare: bool, rough: bool = False) -> None:
        self._left = _MOST_BATCHES if compare else 0
        self._rough = rough
        self._hides = False  # whether a model that would get the labels has no logits then
        self._own: torch.Tensor | None = None

    def outputs(self, model: Any, bare: Any, batch: Mapping[str, Any], label: str = "labels") -> Any:
        """Return the outputs of the model, without a loss if that was for the comparison only.

        Args:
            model: The model to call.
            bare: The Hugging Face model inside it.
            batch: The inputs, including the labels.
            label: Name of the labels.
        """
        self._own = None
        labels = batch.get(label)
        insists = not self._hides and needs_labels(bare, batch, label)
        compares = self._left > 0 and isinstance(labels, torch.Tensor) and _takes(bare, label)
        hidden = {name: value for name, value in batch.items() if name != label}
        if not insists and not compares:
            return model(**hidden)
        outputs = model(**batch)
        if not compares:
            return outputs
        assert labels is not None
        logits, own = entry(outputs, "logits"), entry(outputs, "loss")
        fits = isinstance(logits, torch.Tensor) and logits.shape[:1] == labels.shape[:1]
        if not fits or not isinstance(own, torch.Tensor):
            self._left = 0
            # With labels, some models return no logits, or those of labeled tokens only.
            return outputs if fits else self._without_labels(model, hidden, outputs)
        self._own = own.detach()
        return _without_loss(outputs)

    def _without_labels(self, model: Any, hidden: Mapping[str, Any], outputs: Any) -> Any:
        """Outputs for a batch without labels from now on, if the model can do without."""
        try:
            outputs = model(**hidden)
        except (AttributeError, KeyError, TypeError, ValueError):
            return outputs
        self._hides = True
        return outputs

    def check(self, bare: Any, outputs: Any, batch: Mapping[str, Any], losses: torch.Tensor) -> None:
        """Raise if the model's own loss of the batch is not the mean of `losses`.

        Args:
            bare: The Hugging Face model.
            outputs: Its outputs.
            batch: Its inputs, including the labels.
            losses: One loss per sample, computed from labels and logits.
        """
        if self._own is None:
            return
        rough = self._rough or any(tensor.dtype in _HALF for tensor in (self._own, entry(outputs, "logits")))
        own, self._own, self._left = self._own.flatten().float().cpu(), None, self._left - 1
        ours = _means(losses.detach().float().cpu(), label_counts(bare, outputs, batch).cpu(), len(own))
        if len(ours) != len(own) or not bool((ours.isfinite() & own.isfinite()).all()):
            return  # the model's loss is NaN for a batch without labels
        tolerance = 1e-2 if rough else 1e-4
        if not torch.allclose(own, ours, rtol=tolerance, atol=tolerance / 10):
            raise ConfigError(
                "the model's own loss must be the mean of its samples' losses by logits and labels, got "
                f"{own.mean().item():.6g} from the model, and {ours.mean().item():.6g} is that mean. Class "
                f"weights, smoothed labels or further terms in its forward would be left out. {HINT}"
            )
        if len(batch["labels"][batch["labels"] != IGNORED].unique()) > 1:
            self._left = 0


def _without_loss(outputs: Any) -> Any:
    """Drop the loss, so that it and its graph are freed before the samples' losses are computed."""
    if type(outputs) is tuple:
        return outputs[1:]
    rest = {name: value for name, value in outputs.items() if name != "loss"} if isinstance(outputs, dict) else {}
    if type(outputs) is dict:
        return rest
    return type(outputs)(**rest) if hasattr(outputs, "to_tuple") else outputs  # its entries cannot be deleted


def _means(losses: torch.Tensor, counts: torch.Tensor, parts: int) -> torch.Tensor:
    """Mean over all labels, per part if several devices have split the batch (DataParallel)."""
    shares = zip(losses.chunk(parts), counts.chunk(parts), strict=True)
    return torch.stack([(part * count).sum() / count.sum() for part, count in shares])


# -- settings that would fail silently, or make processes wait for each other -----------------------------------------


def check_loss_behind(mixin: type, trainer: type) -> None:
    """Raise if a Trainer class computes its own loss, which the mixin in front of it would never call.

    Args:
        mixin: The class that computes the loss instead.
        trainer: A class that has the mixin among its bases.
    """
    behind = trainer.__mro__[trainer.__mro__.index(mixin) + 1 :]
    owner = next((kind for kind in behind if "compute_loss" in vars(kind)), None)
    if owner is not None and owner.__module__.partition(".")[0] != "transformers":
        raise ConfigError(
            f"compute_loss behind {mixin.__name__} must be transformers' own, got that of {owner.__name__}: training "
            "would continue without it, because it returns one number for a batch. Give sample_losses, a function of "
            "(outputs, inputs) that returns one loss per sample; next_token_losses is that of TRL's SFTTrainer."
        )


def check_trainer(trainer: Any, pruner: Pruner) -> None:
    """Raise, on all processes, if a Trainer has settings that pruning does not support.

    Args:
        trainer: The Trainer, before its first epoch.
        pruner: The pruner it trains with.
    """
    _check_order(trainer.args)
    if trainer.accelerator.num_processes > 1:
        _check_processes(trainer, pruner)
    _check_sizes(trainer, pruner)


def _strategy(args: Any) -> str:
    # The first versions had a flag of this name in place of the strategy.
    return (
        "group_by_length"
        if getattr(args, "group_by_length", False)
        else str(getattr(args, "train_sampling_strategy", "random"))
    )


def sample_lengths(train_set: Any, args: Any, tokenizer: Any = None) -> list[int]:
    """Return the length of every sample: from its column if there is one, or of its tokens.

    Args:
        train_set: The training set.
        args: The Trainer's arguments, which name the column.
        tokenizer: The processing class, which names the tokens; None for "input_ids".
    """
    train_set = train_set.dataset if isinstance(train_set, Indexed) else train_set
    columns = getattr(train_set, "column_names", None) or ()
    if args.length_column_name in columns:
        return [int(length) for length in train_set[args.length_column_name]]
    name = (getattr(tokenizer, "model_input_names", None) or ["input_ids"])[0]
    if name in columns:
        return [len(tokens) for tokens in train_set[name]]
    first = train_set[0]
    if not (isinstance(first, Mapping) and name in first):
        raise ConfigError(
            f"group_by_length needs the length of every sample: a column {args.length_column_name!r}, or items that "
            f"are dicts with {name!r}, got {type(first).__name__}. Add the column, or train in random order."
        )
    return [len(train_set[index][name]) for index in range(len(train_set))]


def _check_order(args: Any) -> None:
    strategy = _strategy(args)
    if strategy not in ("random", "group_by_length"):
        raise ConfigError(
            "a pruned epoch has its own order: train_sampling_strategy must be 'random' or 'group_by_length', got "
            f"{strategy!r}."
        )
    if args.ignore_data_skip:
        raise ConfigError(
            "ignore_data_skip must be False: a resumed training would train on the first batches of its epoch again. "
            "Skipped batches are not loaded, so skipping takes no time."
        )


def _check_processes(trainer: Any, pruner: Pruner) -> None:
    accelerator, args = trainer.accelerator, trainer.args
    world = accelerator.num_processes
    if pruner.shard:
        raise ConfigError(
            "the Trainer shards batches across processes, and the pruner would shard samples before, so that each "
            f"process would get one in {world * world}. Use Pruner(..., shard=False)."
        )
    sharing = trainer.get_total_train_batch_size(args) // (trainer._train_batch_size * args.gradient_accumulation_steps)
    if sharing != world:
        raise ConfigError(
            f"all {world} processes must get their own batches, only {sharing} do. Tensor, context and sequence "
            "parallelism are not supported here; write a training loop with Pruner(..., process_group=...)."
        )
    for name, wanted in (("dispatch_batches", False), ("split_batches", False), ("even_batches", True)):
        given = bool(getattr(accelerator, name))
        if given is not wanted and not (name == "even_batches" and args.dataloader_drop_last):
            raise ConfigError(
                "every process must iterate over the sampler itself and get the same number of batches: "
                f"accelerator_config must have {name}={wanted}, got {given}."
            )


def _check_sizes(trainer: Any, pruner: Pruner) -> None:
    """Check the lengths of all epochs: the Trainer counts an epoch's batches once, for its loop and its schedule."""
    args = trainer.args
    fewest, most = _batches(trainer, pruner, 0)
    if most == 0:
        raise ConfigError(
            f"an epoch of {pruner.size_bounds(0)[1]} samples has no full batch for every process. Choose a "
            "smaller batch size, prune less, or set dataloader_drop_last=False."
        )
    epochs = math.ceil(args.num_train_epochs)
    if args.max_steps > 0:
        epochs = math.ceil(args.max_steps * args.gradient_accumulation_steps / most)
    for epoch in range(pruner.epoch + epochs):
        bounds = _batches(trainer, pruner, epoch)
        if not fewest == most == bounds[0] == bounds[1]:
            raise ConfigError(
                "the Trainer must know how many batches an epoch has, and it must be the same number for all epochs. "
                f"{describe(pruner.policy)} gives {fewest} to {most} in epoch 0, {bounds[0]} to {bounds[1]} in epoch "
                f"{epoch}. Use a policy that keeps a constant number of samples, or a training loop of your own."
            )


def _batches(trainer: Any, pruner: Pruner, epoch: int) -> tuple[int, int]:
    """Minimum and maximum number of batches that a process can get in that epoch."""
    return steps_within(
        [pruner.size_bounds(epoch)],
        trainer._train_batch_size,
        drop_last=trainer.args.dataloader_drop_last,
        world_size=trainer.accelerator.num_processes,
        split="batches",
    )


# -- the Trainer ------------------------------------------------------------------------------------------------------


#: Name of the file with the pruner's state in a checkpoint folder.
STATE_FILE = "orderdp.pt"

_LOGGED = ("kept", "saved", "coverage")


class EpochSampler(Sampler[int]):
    """Samples of an epoch, always from its start, because the Trainer itself skips those already trained on.

    Based on the steps of all processes together. So an epoch ends with the Trainer's last batch, and ``every="batch"``
    selects as one process with the whole step would.

    Args:
        steps: Batch sampler whose batches are the steps of all processes.
    """

    def __init__(self, steps: PrunedBatchSampler) -> None:
        self._steps = steps

    def __iter__(self) -> Iterator[int]:
        cursor = iter(self._steps)
        assert isinstance(cursor, BatchIterator)
        cursor.load_state_dict({**cursor.state_dict(), "position": 0})
        return chain.from_iterable(cursor)

    def __len__(self) -> int:
        """Samples in a whole epoch, also while an epoch is resumed."""
        steps = self._steps
        return len(steps) * steps.batch_size if steps.drop_last else len(steps.sampler)


class IndexKeeper:
    """Collator for (index, item) pairs: adds the indices to the batch that another collator builds from the items.

    So the index does not depend on a column that a collator or ``remove_unused_columns`` may drop.

    Args:
        collate: The collator for the items.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, pairs: list[tuple[int, Any]]) -> dict[str, Any]:
        """Return the batch, with the indices as int64."""
        indices, items = zip(*pairs, strict=True)
        batch = self.collate(list(items))
        if not isinstance(batch, Mapping):
            raise DatasetError(
                f"the data collator must return a dict, which carries the index, it returned {type(batch).__name__}."
            )
        segments = _segments(batch.get("input_ids"), list(items))
        more = {} if segments is None else {SEGMENTS: segments}
        return {**batch, **more, INDEX: torch.tensor(indices, dtype=torch.int64)}


def _segments(ids: Any, items: list[Any]) -> torch.Tensor | None:
    """Sample of each token, if a collator without padding has put the items' tokens into one row; None otherwise."""
    flat = isinstance(ids, torch.Tensor) and ids.ndim == 2 and len(ids) == 1 < len(items)
    if not flat or not all(isinstance(item, Mapping) and "input_ids" in item for item in items):
        return None
    parts = [torch.as_tensor(item["input_ids"]) for item in items]
    tokens = torch.cat(parts)
    if not torch.equal(ids[0, : len(tokens)], tokens.to(ids.dtype)):
        return None  # the collator has cut or changed items, and whose token is where is unknown
    numbers = torch.arange(len(items)).repeat_interleave(torch.tensor([len(part) for part in parts]))
    return F.pad(numbers, (0, ids.shape[1] - len(tokens)), value=-1).unsqueeze(0)


class PruningMixin(_Trainer):
    """Make a Trainer train on the samples that a pruner selects.

    Put it in front: ``class MyTrainer(PruningMixin, Seq2SeqTrainer): ...``.

    Args:
        *args: Arguments of the Trainer.
        pruner: A pruner for the training set; with ``shard=False`` if there are several processes.
        sample_losses: A function of (outputs, inputs) that returns one loss per sample, if the loss is not the
            cross-entropy of the labels. `inputs` is the batch, including its labels and, under `INDEX`, its indices.
        **kwargs: Arguments of the Trainer.
    """

    train_dataset: Any
    data_collator: Any

    def __init__(
        self,
        *args: Any,
        pruner: Pruner,
        sample_losses: Callable[[Any, Mapping[str, Any]], torch.Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(pruner, Pruner):
            raise ConfigError(f"pruner must be an orderdp.Pruner, got {type(pruner).__name__}.")
        if sample_losses is None:
            check_loss_behind(PruningMixin, type(self))
        train_set = kwargs.get("train_dataset", args[3] if len(args) > 3 else None)
        if train_set is not None:
            length_of(train_set)
            check_length(train_set, pruner.n)
        super().__init__(*args, **kwargs)
        if self.compute_loss_func is not None:
            raise ConfigError(
                "compute_loss_func returns one number for a batch, and pruning needs one for each sample. "
                "Give sample_losses, a function of (outputs, inputs) that returns them."
            )
        self.pruner = pruner
        self._sample_losses = sample_losses
        # With label smoothing the Trainer uses the logits; Liger's kernels return no logits if they get labels.
        replaced = self.label_smoother is not None or getattr(self.args, "use_liger_kernel", False)
        self._own_loss = OwnLoss(
            compare=sample_losses is None and not replaced, rough=self.accelerator.mixed_precision != "no"
        )
        self._train_set: Indexed | None = None
        self._lengths: list[int] | None = None  # by which batches are grouped
        self._step = (1, 0)  # batches and samples of the optimizer step
        self._waits = pruner.policy.needs_feedback  # whether the first losses are still to come back
        self._kept_before: float | None = None
        # For a model that accepts them, the Trainer assumes a loss divided by the tokens of all accumulated batches.
        # The loss here is the mean of one batch, and the Trainer divides it by the number of batches.
        self.model_accepts_loss_kwargs = False

    # -- data --------------------------------------------------------------------------------------------------

    def get_train_dataloader(self) -> Any:
        """Return the Trainer's own loader, over the selected samples, with their indices in the batches."""
        train_set, collator = self.train_dataset, self.data_collator
        self._kept_before = None  # a training that restarts with smaller batches has left its step unfinished
        if train_set is not None:
            length_of(train_set)
            check_length(train_set, self.pruner.n)
            check_trainer(self, self.pruner)
            if _strategy(self.args) == "group_by_length" and self._lengths is None:
                self._lengths = sample_lengths(train_set, self.args, self.processing_class)
            self._train_set = self.train_dataset = Indexed(self._columns_of(train_set))
            self.data_collator = IndexKeeper(self._get_collator_with_removed_columns(collator, description="training"))
        try:
            return super().get_train_dataloader()
        finally:
            self.train_dataset, self.data_collator = train_set, collator

    def _columns_of(self, train_set: Any) -> Any:
        if isinstance(train_set, Indexed):
            train_set = train_set.dataset
        is_table = hasattr(train_set, "column_names") and hasattr(train_set, "remove_columns")
        return self._remove_unused_columns(train_set, description="training") if is_table else train_set

    def _get_train_sampler(self, train_dataset: Any = None) -> EpochSampler:
        """Sampler over the selected samples."""
        together = self._train_batch_size * self.accelerator.num_processes
        drop_last = self.args.dataloader_drop_last
        return EpochSampler(self.pruner.batch_sampler(together, drop_last, group_by=self._lengths))

    def num_examples(self, dataloader: Any) -> int:
        """Samples in an epoch, for the Trainer's messages and speeds."""
        if self._train_set is not None and getattr(dataloader, "dataset", None) is self._train_set:
            return len(self._get_train_sampler())
        return int(super().num_examples(dataloader))

    # -- losses --------------------------------------------------------------------------------------------------

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        """Return the batches of one optimizer step; store how many samples they have."""
        if self._waits:
            self._check_feedback()
        batches, items = super().get_batch_samples(*args, **kwargs)
        self._step = (len(batches), sum(len(batch[INDEX]) for batch in batches if INDEX in batch))
        return batches, items

    def _check_feedback(self) -> None:
        """Raise after the first step if its losses have not come back."""
        kept = self.pruner.report()["kept"]
        if kept == self._kept_before:
            raise FeedbackError(
                "update() received no losses in the first step. Let compute_loss call super().compute_loss, or give "
                f"sample_losses instead, or return self.pruner.update(inputs[{INDEX!r}], losses)."
            )
        self._waits, self._kept_before = self._kept_before is None, kept

    def compute_loss(
        self, model: Any, inputs: Mapping[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean of the samples' losses, which are passed to the pruner; in evaluation the Trainer's own loss."""
        if INDEX not in inputs:
            if model.training:
                raise FeedbackError(
                    f"a training batch must have the samples' indices under {INDEX!r}, it has {sorted(inputs)}. Use "
                    "get_train_dataloader of PruningMixin, and keep this entry if you change its batches."
                )
            return super().compute_loss(
                model, inputs, return_outputs=return_outputs, num_items_in_batch=num_items_in_batch
            )
        batch = {name: value for name, value in inputs.items() if name not in (INDEX, SEGMENTS)}
        index, bare = inputs[INDEX], self._bare_model()
        label = self._label_of(batch)
        outputs = self._own_loss.outputs(model, bare, batch, label)
        labeled = {**inputs, "labels": batch[label]} if label in batch else inputs
        if self._sample_losses is not None:
            losses = self._sample_losses(outputs, inputs)
        else:
            losses = output_losses(bare, outputs, labeled, label_smoothing=self.args.label_smoothing_factor)
            if len(losses) == 1 < len(index):
                raise FeedbackError(
                    f"the batch must have a row for each of its {len(index)} samples, it has one: its samples are "
                    "packed, and where each begins is unknown. Give PruningTrainer(..., sample_losses=...), a function "
                    "of (outputs, inputs) that returns orderdp.per_sample(losses, segments=..., count=...)."
                )
            self._own_loss.check(bare, outputs, labeled, losses)
        extra: dict[str, Any] = told(outputs, labeled, self.pruner.update_arguments, self.pruner.policy)
        loss = self.pruner.update(index, losses, **extra) * self._share_of_step(len(index))
        return (loss, outputs) if return_outputs else loss

    def _label_of(self, batch: Mapping[str, Any]) -> str:
        """Name of the labels in a batch: the Trainer's label_names, if one of them is there."""
        names: list[str] = [name for name in self.label_names if name in batch]
        return names[0] if len(names) == 1 else "labels"

    def _share_of_step(self, samples: int) -> float:
        """Factor of a batch in its step, so that every sample has the same weight.

        1, except in the last step of an epoch, where batches may differ in size. The Trainer divides by their number.
        """
        batches, all_samples = self._step
        return samples * batches / all_samples if all_samples else 1.0

    def _bare_model(self) -> Any:
        model = self.accelerator.unwrap_model(self.model)
        return model.get_base_model() if hasattr(model, "get_base_model") else model  # an adapter's base model

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the savings so far to the Trainer's training logs."""
        if "loss" in logs or "train_runtime" in logs:
            report = self.pruner.report()
            logs = {**logs, **{f"orderdp_{name}": report[name] for name in _LOGGED}}
        super().log(logs, *args, **kwargs)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Any = None, trial: Any = None, **kwargs: Any) -> Any:
        """Train; on resume, also load the pruner's state from the checkpoint folder."""
        if trial is not None:
            raise ConfigError(
                "trials would share the scores of one pruner. Create a pruner and a Trainer for each trial."
            )
        if resume_from_checkpoint:
            self._load_pruner(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, trial, **kwargs)

    def _load_pruner(self, checkpoint: Any) -> None:
        if checkpoint is True:
            from transformers.trainer_utils import get_last_checkpoint

            checkpoint = get_last_checkpoint(self.args.output_dir)
            if checkpoint is None:
                return  # the Trainer raises the error
        path = Path(checkpoint) / STATE_FILE
        if not path.exists():
            raise StateError(
                f"{str(checkpoint)!r} must hold {STATE_FILE}, the pruner's state, it does not: it was written without "
                "pruning, with save_only_model=True, or is incomplete. Resume from another checkpoint."
            )
        self.pruner.load_state_dict(load_checkpoint(path))

    def _save_checkpoint(self, model: Any, trial: Any, *args: Any, **kwargs: Any) -> None:
        # Before the Trainer's own files, because the Trainer deletes older checkpoints when it writes them.
        if not self.args.save_only_model:
            self.pruner.sync()
            if self.args.should_save:
                folder = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
                folder.mkdir(parents=True, exist_ok=True)
                save_checkpoint(folder / STATE_FILE, self.pruner.state_dict())
        super()._save_checkpoint(model, trial, *args, **kwargs)


def __getattr__(name: str) -> Any:
    # Created on first access, so that the module can be imported without transformers.
    if name != "PruningTrainer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from transformers import Trainer
    except ImportError:
        raise ConfigError(f"PruningTrainer needs transformers: {install_command('transformers')}.") from None
    doc = "Hugging Face's Trainer, training on what a pruner selects. See `PruningMixin`."
    globals()[name] = type(name, (PruningMixin, Trainer), {"__doc__": doc, "__module__": __name__})
    return globals()[name]
