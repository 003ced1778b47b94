"""The settings of a run, the options of running, the grid of a comparison, and user-defined objects by path."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

from orderdp._validation import check_ratio, checked_name, is_count, suggestion
from orderdp.errors import ConfigError
from orderdp.experiments.records import OLD_NAMES, with_new_names
from orderdp.policies.registry import NAMES, RECORDED, build_at, config_of

__all__ = [
    "BEFORE",
    "CONTROLS",
    "DEFAULT_POLICIES",
    "PRESETS",
    "VARIED",
    "DiagnosticLevel",
    "MethodSpec",
    "RunOptions",
    "Settings",
    "canonical",
    "check_parameters",
    "distinct",
    "grid",
    "import_object",
    "parse_method",
    "planned_epochs",
    "preset_values",
    "read_config",
    "read_toml",
    "split_outside_brackets",
    "takes_ratio",
]


def import_object(spec: str, what: str) -> Callable[..., Any]:
    """Import the function at `spec`, ``module:name`` or ``file.py:name``; the current folder is searched, too."""
    module_name, _, name = spec.rpartition(":")
    if not module_name or not name or (module_name.startswith(".") and not module_name.endswith(".py")):
        raise ConfigError(f"a {what} of your own must be given as module:name, got {spec!r}.")
    path = Path(module_name) if module_name.endswith(".py") else None
    if path is not None:
        if not path.exists():
            raise ConfigError(f"the file {module_name!r} of the {what} does not exist.")
        folder, module_name = str(path.parent.resolve()), path.stem
    else:
        folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
        if path is not None and not _is_from(module, path):
            # At the front of sys.path, the folder would hide the other module from processes that start later.
            sys.path.remove(folder)
            sys.path.append(folder)
            module = _taken_from(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"the module of {what} {spec!r} cannot be imported: {error}.") from None
    if not callable(getattr(module, name, None)):
        known = [entry for entry in vars(module) if not entry.startswith("_") and callable(getattr(module, entry))]
        raise ConfigError(f"module {module_name!r} has no function {name!r}.{suggestion(name, known)}")
    found: Callable[..., Any] = getattr(module, name)
    return found


def _is_from(module: ModuleType, path: Path) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and Path(found).resolve() == path.resolve()


def _taken_from(path: Path) -> ModuleType:
    """Load a file whose name another module already has, such as random.py."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


#: Controls, defined by the number of epochs: all data, and all data for fewer epochs.
CONTROLS = ("full", "reduced")


#: Settings that may differ between the runs of a comparison.
VARIED = ("policy", "policy_parameters", "prune_ratio", "seed")


#: Level of diagnostics. False: those of every run, without gradients. "steps": also the gradient of each step and the
#: risk. True: also the gradient of all data, which takes longer than most runs themselves.
DiagnosticLevel = bool | Literal["steps"]


@dataclass(frozen=True)
class RunOptions:
    """How runs are carried out: folders, device, processes, checkpoints, output. No option changes a result.

    Attributes:
        out: Folder of the comparison; each run has its own folder in ``runs``.
        data_dir: Folder that is searched for data first.
        device: Name of the device; "auto" is a GPU if there is one.
        threads: Threads of torch in each process; None for torch's default.
        jobs: Number of runs at a time; more than one run in processes of their own.
        checkpoint_seconds: Seconds between checkpoints, also within an epoch.
        command: Command line, for the records.
        tests: Further test sets for the trained models, by name or path. Only their test splits are used.
        tensorboard: Whether to write TensorBoard logs as well.
        wandb: Project of Weights & Biases that the numbers of each epoch are sent to, or None.
        mlflow: Experiment of MLflow that the numbers of each epoch are sent to, or None.
        diagnose: Whether to compute diagnostics of gradients and kept sets; "steps" leaves out the gradient of all
            data.
        quiet: Whether to show no progress.
        resume: Whether ``orderdp train`` resumes the run in the folder.
    """

    out: Path
    data_dir: Path | None = None
    device: str = "auto"
    threads: int | None = None
    jobs: int = 1
    checkpoint_seconds: float = 30.0
    command: str | None = None
    tests: tuple[str, ...] = ()
    tensorboard: bool = False
    wandb: str | None = None
    mlflow: str | None = None
    diagnose: DiagnosticLevel = False
    quiet: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise ConfigError(f"--jobs must be at least 1, got {self.jobs}.")
        if self.threads is not None and self.threads < 1:
            raise ConfigError(f"--threads must be at least 1, got {self.threads}.")
        if not self.checkpoint_seconds >= 0:  # also rejects NaN, which would mean never
            raise ConfigError(f"--checkpoint-seconds must be a number, at least 0, got {self.checkpoint_seconds}.")
        if self.diagnose not in (False, True, "steps"):
            raise ConfigError(f'diagnose must be False, True or "steps", got {self.diagnose!r}.')

    def folder(self, run: Settings) -> Path:
        """Return the folder of `run`."""
        return self.out / "runs" / run.run_id


@dataclass(frozen=True)
class Settings:
    """The settings of one training run.

    Attributes:
        data: Name or path of the data set, with modifiers; "" if a task provides the data.
        task: ``module:factory`` of a user-defined task, or None.
        model: Name of the model, or ``module:factory``.
        width: Width of the model, for models that have one.
        policy: Name of the policy. "full" trains on all data for all epochs, "reduced" on all data for the kept
            fraction of the epochs.
        policy_parameters: Parameters of the policy other than the prune ratio.
        prune_ratio: Fraction of the samples left out in each epoch; None for policies without a ratio.
        epochs: Number of epochs; for "reduced", the number of epochs of full data.
        seed: Seed of weights, sample order, selections and augmentation.
        batch_size: Samples per batch.
        drop_last: Whether an incomplete last batch is dropped. Right before a test, an incomplete batch would take a
            whole step and move the statistics of batch normalization, for some methods and not for others.
        steps: "fewer": a pruned epoch has fewer steps. "same": as many steps as full data, with batch size and
            learning rate multiplied by the kept fraction.
        optimizer: "sgd", "adamw", "lars" or "lamb".
        lr: Maximum learning rate.
        momentum: Momentum of SGD and LARS.
        nesterov: Whether SGD uses Nesterov momentum.
        weight_decay: Weight decay.
        schedule: Learning-rate schedule: "onecycle", "cosine", "step" or "constant".
        label_smoothing: Fraction of the target that is spread over all classes.
        mixup: Alpha of MixUp, 0 for none.
        cutmix: Alpha of CutMix, 0 for none. If both are set, each batch uses one of the two.
        augment: Whether training images are shifted and mirrored, as is usual for the data set.
        flip: How images are mirrored, if the augmentation mirrors: "random", or "alternate", every second time that a
            sample is used.
        accumulate: Batches per step.
        average: Whether the final model is the average of the iterates, weighted by the learning rate.
        amp: Whether to use mixed precision.
        channels_last: Whether images are stored in the channels-last memory format.
        compile: Whether the model is compiled.
        evaluate_every: Epochs between tests; the last epoch is always tested.
        proxy_epochs: Epochs that the proxy of a static method is trained for.
        proxy_inits: Number of proxies, for methods that average over several.
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
                "flip='alternate' needs training images that are mirrored, and there are none "
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
            raise ConfigError("nesterov needs a momentum above 0, got 0. Set a momentum, or leave nesterov out.")
        check_ratio("label_smoothing", self.label_smoothing)
        if self.prune_ratio is not None:
            check_ratio("prune_ratio", self.prune_ratio)
        if self.steps not in ("fewer", "same"):
            raise ConfigError(f'steps must be "fewer" or "same", got {self.steps!r}.')
        if self.policy == "reduced" and self.prune_ratio is None:
            raise ConfigError('policy "reduced" trains for fewer epochs and needs a prune_ratio to say how many.')

    @property
    def epochs_run(self) -> int:
        """Planned number of epochs: fewer for the control that costs as much as a pruned run."""
        return planned_epochs(self.policy, self.epochs, self.prune_ratio)

    @property
    def label(self) -> str:
        """Name of the run in tables and charts."""
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
        # Only settings that differ from their defaults: a setting that a later version adds keeps the ids of old runs.
        chosen = {
            OLD_NAMES.get(name, name): value for name, value in self.as_dict().items() if value != _defaults().get(name)
        }
        digest = hashlib.blake2b(json.dumps(chosen, sort_keys=True).encode(), digest_size=4).hexdigest()
        return f"{self.policy}{ratio}-seed{self.seed}-{digest}"

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for records and comparisons."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Settings:
        """Build settings from plain `values`; an unknown name is an error that suggests the nearest name."""
        values = with_new_names(values)
        known = [entry.name for entry in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise ConfigError(f"there is no setting {name!r}.{suggestion(name, known)}")
        return cls(**values)

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """List the settings that differ in `other`, one line each; a missing setting counts as the default."""
        own = self.as_dict()
        other = {**_defaults(), **with_new_names(other)}
        names = [*own, *(name for name in other if name not in own)]
        return [
            f"{name}: was {other.get(name)!r}, is {own.get(name)!r}"
            for name in names
            if _written(name, own.get(name)) != _written(name, other.get(name))
        ]


def planned_epochs(policy: str, epochs: int, prune_ratio: float | None) -> int:
    """Return the number of epochs of a run if full data has `epochs`: fewer for the policy "reduced".

    >>> planned_epochs("reduced", 10, 0.7), planned_epochs("orderdp", 10, 0.7)
    (3, 10)
    """
    if policy != "reduced" or prune_ratio is None:
        return epochs
    return max(1, math.ceil(round(epochs * (1 - prune_ratio), 9)))  # the last epoch may be cut short


#: Behavior of runs before these settings existed: the values for records that lack them.
BEFORE: dict[str, Any] = {"drop_last": False}


def _defaults() -> dict[str, Any]:
    return {**Settings().as_dict(), **BEFORE}


def _written(name: str, value: Any) -> str:
    """Format a setting for `run_id`: 1 and 1.0 differ, unless they equal the default."""
    default = _defaults().get(name)
    return json.dumps(default if value == default else value, sort_keys=True)


#: Presets: the recipes of the paper, and one for two CPU cores.
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
    """Read the settings in a TOML file, on top of the preset that the file names."""
    try:
        values = read_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no config file {str(path)!r}.") from None
    except ValueError as error:  # also TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"{str(path)!r} must be TOML: {error}.") from None
    preset = values.pop("preset", None)
    return {**preset_values(preset), **values}


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    values: dict[str, Any] = tomllib.loads(text)
    return values


def preset_values(name: str | None) -> dict[str, Any]:
    """Return the settings of a preset; an empty dict for None."""
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
    """A policy with its parameters; a comparison runs it at every ratio and seed."""

    policy: str
    parameters: dict[str, Any]


def parse_method(text: str, names: Collection[str] | None = None, what: str = "policy") -> MethodSpec:
    """Parse a method of the command line: the name of a policy, then its parameters.

    >>> parse_method("infobatch:annealing=none")
    MethodSpec(policy='infobatch', parameters={'annealing': None})
    >>> parse_method('orderdp:exploration=1.0:select={"name":"trimmed","share":0.1}').parameters["select"]["share"]
    0.1

    Args:
        text: Text to parse.
        names: Valid names; policies, controls and static methods if not given.
        what: Word for a name in error messages.
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
    """Raise if a control has parameters, or if the prune ratio is among the parameters."""
    if name in CONTROLS and parameters:
        raise ConfigError(f"{name!r} trains on all data and takes no parameters, got {', '.join(parameters)}.")
    by_ratio = NAMES[name].parameters_at(0.5) if name in NAMES else {}
    ratio = {"prune_ratio", *by_ratio} & set(parameters)
    if ratio:
        raise ConfigError(
            f"{ratio.pop()!r} is the prune ratio of {name!r}. Set it with --prune-ratio, or --prune-ratios in a "
            "comparison."
        )


def canonical(method: MethodSpec) -> MethodSpec:
    """Return the method without the parameters that have their default values: equal methods are then equal.

    >>> canonical(parse_method("orderdp:select=top:exploration=0.9"))
    MethodSpec(policy='orderdp', parameters={'exploration': 0.9})
    """
    if not method.parameters or method.policy in CONTROLS or method.policy in RECORDED:
        return method
    try:
        whole = _built(method)
    except ConfigError:  # said later, with the settings of a run
        return method
    kept = dict(method.parameters)
    for name in method.parameters:
        fewer = {key: value for key, value in kept.items() if key != name}
        try:
            if _built(MethodSpec(method.policy, fewer)) == whole:
                kept = fewer
        except ConfigError:  # it cannot be left out
            continue
    return MethodSpec(method.policy, kept)


def distinct(methods: Sequence[MethodSpec]) -> list[MethodSpec]:
    """Return the methods in their canonical form, each once; 1 and 1.0 are equal."""
    found: list[MethodSpec] = []
    for method in map(canonical, methods):
        if method not in found:
            found.append(method)
    return found


def _built(method: MethodSpec) -> dict[str, Any]:
    """Return all parameters that a method has, at a ratio at which it can be built."""
    if method.policy in NAMES:
        # With both dials the ratio comes from them; a pool is at least as large as what is kept of it.
        return config_of(build_at(method.policy, 0.999 if takes_ratio(method) else None, **method.parameters))
    from orderdp.coresets.registry import build
    from orderdp.coresets.registry import config_of as config_of_method

    return config_of_method(build(method.policy, **method.parameters))


def takes_ratio(method: MethodSpec) -> bool:
    """Whether the method uses a prune ratio.

    A method does not if it decides the ratio itself, or if exploration and exploitation are both given.
    """
    return method.policy not in _WITHOUT_RATIO and not {"exploration", "exploitation"} <= set(method.parameters)


def grid(
    base: Settings,
    methods: Sequence[MethodSpec],
    ratios: Sequence[float],
    seeds: Sequence[int],
    controls: bool = True,
) -> list[Settings]:
    """Return all runs of a comparison, seed by seed, so that the first finished runs are already comparable.

    Equal runs are made once: parameters that have their default values are left out.

    Args:
        base: Settings that all runs share.
        methods: The methods to compare.
        ratios: Prune ratios, for methods that use one.
        seeds: Seeds; every method runs once per seed.
        controls: Whether to add full data, full data for fewer epochs, and dynamic random.
    """
    if not methods or not seeds:
        raise ConfigError("a comparison needs at least one policy and one seed.")
    if not ratios and any(takes_ratio(method) for method in methods):
        raise ConfigError("a comparison needs at least one prune ratio for policies that have one, got none.")
    wanted = distinct(methods)
    if controls:
        named = {method.policy for method in wanted}
        wanted = [MethodSpec(name, {}) for name in ("full", "reduced", "random") if name not in named] + wanted
    runs: dict[Settings | str, Settings] = {}
    for seed in seeds:
        for method in wanted:
            for ratio in ratios if takes_ratio(method) else [None]:
                run = replace(
                    base,
                    policy=method.policy,
                    policy_parameters=method.parameters,
                    prune_ratio=ratio,
                    seed=seed,
                )
                runs[run.run_id] = run
    return list(runs.values())


def _known() -> list[str]:
    from orderdp.coresets.registry import NAMES as STATIC

    return list(dict.fromkeys((*NAMES, *RECORDED, *CONTROLS, *STATIC)))  # "full" is a policy and a control


def split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split a text at the separators that are not inside {} or [].

    >>> split_outside_brackets('orderdp:select={"name":"mixed","top":0.9,"uniform":0.1},full', ",")
    ['orderdp:select={"name":"mixed","top":0.9,"uniform":0.1}', 'full']
    """
    parts, depth, start = [], 0, 0
    for position, character in enumerate(text):
        depth += (character in "{[") - (character in "}]")
        if character == separator and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    return [*parts, text[start:]]


def _value(text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    try:
        return json.loads(text.lower() if text.lower() in ("true", "false") else text)
    except json.JSONDecodeError:
        return text
