"""Which runs a comparison consists of."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from orderdp.errors import ConfigError
from orderdp.naming import checked_name
from orderdp.policies.ratios import ratio_name
from orderdp.policies.registry import NAMES, RECORDED
from orderdp.workbench.settings import CONTROLS, Settings

__all__ = [
    "DEFAULT_POLICIES",
    "Contender",
    "check_parameters",
    "grid",
    "parse_contender",
    "split_outside_brackets",
    "takes_ratio",
]

DEFAULT_POLICIES = ("full", "reduced", "random", "infobatch", "orderdp")

_WITHOUT_RATIO = (
    "full",
    "infobatch-quantile",
    "adaptive",
    "skip-learned",
    "instance-early-stopping",
    "progressive-dropout",
)


class Contender(NamedTuple):
    """A policy with its parameters, to be run at every ratio and seed."""

    policy: str
    parameters: dict[str, Any]


def parse_contender(text: str, names: Collection[str] | None = None, what: str = "policy") -> Contender:
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
    return Contender(name, parameters)


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


def takes_ratio(contender: Contender) -> bool:
    """Whether a prune ratio changes what it does: not where it decides by itself, or both its dials are given."""
    return contender.policy not in _WITHOUT_RATIO and not {"exploration", "exploitation"} <= set(contender.parameters)


def grid(
    base: Settings,
    contenders: Sequence[Contender],
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
        wanted = [Contender(name, {}) for name in ("full", "reduced", "random") if name not in named] + wanted
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
