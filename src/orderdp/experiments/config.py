"""What a run is, as one flat value that goes into its records; and which runs a comparison consists of."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from orderdp._validation import check_ratio, checked_name, is_count, suggestion
from orderdp.errors import ConfigError
from orderdp.experiments.records import OLD_NAMES, with_new_names
from orderdp.policies._selection import ratio_name
from orderdp.policies.registry import NAMES, RECORDED

__all__ = [
    "BEFORE",
    "CONTROLS",
    "DEFAULT_POLICIES",
    "PRESETS",
    "VARIED",
    "MethodSpec",
    "Settings",
    "check_parameters",
    "grid",
    "parse_method",
    "planned_epochs",
    "preset_values",
    "read_config",
    "split_outside_brackets",
    "takes_ratio",
]


#: Policies that the workbench makes out of the number of epochs: all data, and all data for less long.
CONTROLS = ("full", "reduced")


#: What a comparison varies from run to run.
VARIED = ("policy", "policy_parameters", "prune_ratio", "seed")


@dataclass(frozen=True)
class Settings:
    """One training run.

    Attributes:
        data: Name or path of the data set, with modifiers; "" where a task brings its own.
        task: ``module:factory`` of a task of the user's own, or None.
        model: Name of the model, or ``module:factory``.
        width: Of models that have one.
        policy: Name of the policy; "full" and "reduced" are all data, for all epochs and for the share kept.
        policy_parameters: Its parameters besides the ratio.
        prune_ratio: Share left out each epoch; None for policies without one.
        epochs: How many; for "reduced" the number that full data has.
        seed: Of weights, order, draws and augmentation.
        batch_size: Samples a batch.
        drop_last: Whether an incomplete last batch is left out. Right before a test it would take a whole step and
            move the statistics of batch normalisation, in some methods and not in others.
        steps: "fewer", what is pruned makes fewer steps; or "same", as many steps as full data, with batches and
            learning rate smaller by the share kept.
        optimizer: "sgd", "adamw", "lars" or "lamb".
        lr: Its largest learning rate.
        momentum: Of SGD and LARS.
        nesterov: Whether SGD looks ahead.
        weight_decay: Weight decay.
        schedule: How the learning rate moves: "onecycle", "cosine", "step" or "constant".
        label_smoothing: Share of the target spread over all classes.
        mixup: Alpha of MixUp, 0 for none.
        cutmix: Alpha of CutMix, 0 for none. With both, each batch has one of them.
        augment: Whether training images are shifted and mirrored as is usual for the data set.
        flip: Which of them are mirrored, where any are: "random", or "alternate", a sample every other time it is used.
        accumulate: Batches a step.
        average: Whether the final model is the average of the iterates, weighted by the learning rate.
        amp: Whether to compute in mixed precision.
        channels_last: Whether images are stored with their channels last.
        compile: Whether the model is compiled.
        evaluate_every: Epochs between tests; the last one is always tested.
        proxy_epochs: How long the proxy of a static method is trained.
        proxy_inits: How many proxies there are, for methods that average over several.
    """

    data: str = "digits"
    task: str | None = None
    model: str = "cnn"
    width: int | None = None
    policy: str = "orderdp"
    policy_parameters: dict[str, Any] = field(default_factory=dict)
    prune_ratio: float | None = None
    epochs: int = 10
    seed: int = 0
    batch_size: int = 128
    drop_last: bool = True
    steps: str = "fewer"
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 5e-4
    schedule: str = "onecycle"
    label_smoothing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    augment: bool = True
    flip: str = "random"
    accumulate: int = 1
    average: bool = False
    amp: bool = False
    channels_last: bool = False
    compile: bool = False
    evaluate_every: int = 1
    proxy_epochs: int = 10
    proxy_inits: int = 1

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every", "proxy_epochs", "proxy_inits"):
            if not is_count(getattr(self, name)):
                raise ConfigError(f"{name} must be a whole number, at least 1, got {getattr(self, name)!r}.")
        for name in ("data", "model", "policy", "optimizer", "schedule", "flip"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} must be a name, got {getattr(self, name)!r}.")
        if self.task is not None and not isinstance(self.task, str):
            raise ConfigError(f"task must be module:factory, got {self.task!r}.")
        for name in ("nesterov", "augment", "average", "amp", "channels_last", "compile", "drop_last"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, got {getattr(self, name)!r}.")
        checked_name(self.flip, ("random", "alternate"), "flip")
        if self.flip == "alternate" and (self.task is not None or not self.augment):
            raise ConfigError(
                "flip='alternate' is about training images that the workbench mirrors, and there are none "
                f"{'without augmentation' if self.task is None else 'in a task of your own'}. Leave it out."
            )
        if not isinstance(self.policy_parameters, Mapping):
            raise ConfigError(f"policy_parameters must be names with values, got {self.policy_parameters!r}.")
        if not is_count(self.seed, least=0) or self.seed >= 1 << 64:
            raise ConfigError(f"seed must be a whole number, at least 0 and below 2**64, got {self.seed!r}.")
        if self.width is not None and not is_count(self.width):
            raise ConfigError(f"width must be a whole number, at least 1, got {self.width!r}.")
        for name in ("lr", "momentum", "weight_decay", "mixup", "cutmix"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
                raise ConfigError(f"{name} must be a number, at least 0, got {value!r}.")
        if self.nesterov and self.momentum == 0:
            raise ConfigError("nesterov looks ahead along the momentum, which is 0. Give a momentum, or leave it out.")
        check_ratio("label_smoothing", self.label_smoothing)
        if self.prune_ratio is not None:
            check_ratio("prune_ratio", self.prune_ratio)
        if self.steps not in ("fewer", "same"):
            raise ConfigError(f'steps must be "fewer" or "same", got {self.steps!r}.')
        if self.policy == "reduced" and self.prune_ratio is None:
            raise ConfigError('policy "reduced" trains for fewer epochs and needs a prune_ratio to say how many.')

    @property
    def epochs_run(self) -> int:
        """How many epochs the run has, as far as that is known: fewer where a control costs as much as a pruned run."""
        return planned_epochs(self.policy, self.epochs, self.prune_ratio)

    @property
    def label(self) -> str:
        """What tables and charts call the run."""
        if self.policy in CONTROLS:
            name = {"full": "full data", "reduced": "fewer epochs"}[self.policy]
        else:
            name = self.policy
        chosen = ", ".join(f"{key}={_short(value)}" for key, value in self.policy_parameters.items())
        name += f" ({chosen})" if chosen else ""
        return name if self.prune_ratio is None or self.policy == "full" else f"{name} {100 * self.prune_ratio:g}%"

    @property
    def run_id(self) -> str:
        """Name of the run's folder: readable, and different for different settings."""
        ratio = "" if self.prune_ratio is None else f"-{round(1000 * self.prune_ratio):03d}"
        # Of what was chosen: so a setting that a later version adds does not make finished runs unknown.
        chosen = {
            OLD_NAMES.get(name, name): value for name, value in self.as_dict().items() if value != _defaults().get(name)
        }
        digest = hashlib.blake2b(json.dumps(chosen, sort_keys=True).encode(), digest_size=4).hexdigest()
        return f"{self.policy}{ratio}-seed{self.seed}-{digest}"

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for records and comparisons."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """From plain values; an unknown name is an error that suggests the nearest."""
        values = with_new_names(values)
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"there is no setting {name!r}.{suggestion(name, known)}")
        return cls(**values)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """What `other` has otherwise, one line each; what it does not have is as if it were not chosen."""
        own = self.as_dict()
        other = {**_defaults(), **with_new_names(other)}
        names = [*own, *(name for name in other if name not in own)]
        return [
            f"{name}: was {other.get(name)!r}, is {own.get(name)!r}"
            for name in names
            if _written(name, own.get(name)) != _written(name, other.get(name))
        ]


def planned_epochs(policy: str, epochs: int, prune_ratio: float | None) -> int:
    """How many epochs a run has, where full data has `epochs`: fewer under the policy "reduced".

    >>> planned_epochs("reduced", 10, 0.7), planned_epochs("orderdp", 10, 0.7)
    (3, 10)
    """
    if policy != "reduced" or prune_ratio is None:
        return epochs
    return max(1, math.ceil(round(epochs * (1 - prune_ratio), 9)))  # the last one may be cut short


#: What runs did before these settings were there, so that records without them are read as what they are.
BEFORE: dict[str, Any] = {"drop_last": False}


def _defaults() -> dict[str, Any]:
    return {**Settings().as_dict(), **BEFORE}


def _written(name: str, value: Any) -> str:
    """A setting as `run_id` sees it: 1 and 1.0 are two, unless they are the default."""
    default = _defaults().get(name)
    return json.dumps(default if value == default else value, sort_keys=True)


#: Named starting points. The paper's own recipes, and one for two cores.
PRESETS: dict[str, dict[str, Any]] = {
    "cpu": {
        "model": "cnn",
        "width": 16,
        "epochs": 10,
        "batch_size": 128,
        "lr": 0.2,
        "schedule": "onecycle",
        "channels_last": True,
    },
    "paper-cifar-resnet18": {
        "model": "resnet18",
        "epochs": 200,
        "batch_size": 128,
        "optimizer": "sgd",
        "lr": 0.2,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "onecycle",
        "label_smoothing": 0.1,
    },
    "paper-cifar-resnet50": {
        "model": "resnet50",
        "epochs": 200,
        "batch_size": 128,
        "optimizer": "sgd",
        "lr": 0.03,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "schedule": "onecycle",
        "label_smoothing": 0.1,
    },
    "paper-imagenet-resnet18": {
        "model": "timm:resnet18",
        "epochs": 90,
        "batch_size": 1024,
        "optimizer": "lars",
        "lr": 1.98,
        "weight_decay": 5e-4,
        "schedule": "onecycle",
        "label_smoothing": 0.1,
    },
    "paper-imagenet-resnet50": {
        "model": "timm:resnet50",
        "epochs": 90,
        "batch_size": 1024,
        "optimizer": "lars",
        "lr": 6.4,
        "weight_decay": 5e-4,
        "schedule": "onecycle",
        "label_smoothing": 0.1,
    },
}


def read_config(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, and those of the preset it names."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {str(path)!r}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{str(path)!r} must be TOML: {error}.") from None
    preset = values.pop("preset", None)
    return {**preset_values(preset), **values}


def preset_values(name: str | None) -> dict[str, Any]:
    """The settings of a preset; none for None."""
    if name is None:
        return {}
    if not isinstance(name, str):
        raise ConfigError(f"preset must be a name, got {name!r}.")
    checked_name(name, PRESETS, "preset")
    return PRESETS[name]


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "/".join(_short(entry) for entry in value.values())
    return f"{value:g}" if isinstance(value, float) else str(value)


DEFAULT_POLICIES = ("full", "reduced", "random", "infobatch", "orderdp")


_WITHOUT_RATIO = (
    "full",
    "infobatch-quantile",
    "adaptive",
    "skip-learned",
    "instance-early-stopping",
    "progressive-dropout",
)


class MethodSpec(NamedTuple):
    """A policy with its parameters, to be run at every ratio and seed."""

    policy: str
    parameters: dict[str, Any]


def parse_method(text: str, names: Collection[str] | None = None, what: str = "policy") -> MethodSpec:
    """A policy as the command line has it: a name, then parameters.

    >>> parse_contender("infobatch:annealing=none")
    Contender(policy='infobatch', parameters={'annealing': None})
    >>> parse_contender('orderdp:exploration=1.0:select={"name":"trimmed","share":0.1}').parameters["select"]["share"]
    0.1

    Args:
        text: What was written.
        names: Which there are; policies, controls and static methods if not given.
        what: What they are called in an error.
    """
    name, *parts = split_outside_brackets(text.strip(), ":")
    checked_name(name, _known() if names is None else list(names), what)
    parameters = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"parameters of a policy are written name:key=value, got {part!r} in {text!r}.")
        parameters[key.strip().replace("-", "_")] = _value(value.strip())
    check_parameters(name, parameters)
    return MethodSpec(name, parameters)


def check_parameters(name: str, parameters: dict[str, Any]) -> None:
    """Raises where a control has parameters, or where the ratio is among them."""
    if name in CONTROLS and parameters:
        raise ConfigError(f"{name!r} is all data and takes no parameters, got {', '.join(parameters)}.")
    at_ratio = getattr(NAMES.get(name), "parameters_at", None)
    by_ratio: dict[str, Any] = {} if at_ratio is None else at_ratio(0.5)
    ratio = {"prune_ratio", ratio_name(NAMES.get(name)), *by_ratio} & set(parameters)
    if ratio:
        raise ConfigError(
            f"{ratio.pop()!r} is the ratio of {name!r} and comes from --prune-ratio, or --prune-ratios in a comparison."
        )


def takes_ratio(contender: MethodSpec) -> bool:
    """Whether a prune ratio changes what it does: not where it decides by itself, or both its dials are given."""
    return contender.policy not in _WITHOUT_RATIO and not {"exploration", "exploitation"} <= set(contender.parameters)


def grid(
    base: Settings,
    contenders: Sequence[MethodSpec],
    ratios: Sequence[float],
    seeds: Sequence[int],
    controls: bool = True,
) -> list[Settings]:
    """All runs, seed by seed, so that what is finished first can be compared already.

    Args:
        base: What they have in common.
        contenders: The policies.
        ratios: Prune ratios, for those that have one.
        seeds: One run of each for every seed.
        controls: Whether full data, full data for fewer epochs and dynamic random are in whether asked for or not.
    """
    if not contenders or not seeds:
        raise ConfigError("a comparison needs at least one policy and one seed.")
    if not ratios and any(takes_ratio(contender) for contender in contenders):
        raise ConfigError("a comparison needs at least one prune ratio for policies that have one, got none.")
    wanted = list(contenders)
    if controls:
        named = {contender.policy for contender in wanted}
        wanted = [MethodSpec(name, {}) for name in ("full", "reduced", "random") if name not in named] + wanted
    runs: dict[Settings | str, Settings] = {}
    for seed in seeds:
        for contender in wanted:
            for ratio in ratios if takes_ratio(contender) else [None]:
                run = replace(
                    base,
                    policy=contender.policy,
                    policy_parameters=contender.parameters,
                    prune_ratio=ratio,
                    seed=seed,
                )
                runs[run.run_id] = run
    return list(runs.values())


def _known() -> list[str]:
    from orderdp.coresets.registry import NAMES as STATIC

    return list(dict.fromkeys((*NAMES, *RECORDED, *CONTROLS, *STATIC)))  # "full" is a policy and a control


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """The parts of a text, without those separators that stand inside of {} or [].

    >>> split_outside_brackets('orderdp:select={"name":"mixed","top":0.9,"uniform":0.1},full', ",")
    ['orderdp:select={"name":"mixed","top":0.9,"uniform":0.1}', 'full']
    """
    parts, depth, start = [], 0, 0
    for place, character in enumerate(text):
        depth += (character in "{[") - (character in "}]")
        if character == separator and depth == 0:
            parts.append(text[start:place])
            start = place + 1
    return [*parts, text[start:]]


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        return text
