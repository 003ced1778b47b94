"""Names and plain values of policies, coreset methods, schedules, pool rules and thresholds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from orderdp import coresets, policies
from orderdp.errors import ConfigError
from orderdp.policies import Budget, LossBelow, Mixed, OrderDP, Probability, RelativeLoss, Scheduled, Trimmed, Unlearned
from orderdp.policies.learned import THRESHOLDS
from orderdp.policies.orderdp import RULES, PoolRule
from orderdp.policies.registry import NAMES as POLICIES
from orderdp.policies.registry import RECORDED
from orderdp.policies.schedules import SCHEDULES, Schedule
from orderdp.registry import Registry, plain

RECORDS = Path(__file__).parents[1] / "docs" / "results" / "records"

REGISTRIES: dict[str, Registry[Any]] = {
    "policies": POLICIES,
    "coresets": coresets.NAMES,
    "schedules": SCHEDULES,
    "rules": RULES,
    "thresholds": THRESHOLDS,
}

#: A value for every parameter without a default.
NEEDED = {
    "prune_ratio": 0.5,
    "share": 0.3,
    "r": 0.3,
    "rho": 0.3,
    "fraction": 0.3,
    "tolerance": 0.1,
    "epochs": 2,
    "start": 0.1,
    "end": 0.4,
    "decay": 0.9,
    "top": 0.75,
    "uniform": 0.25,
    "value": 0.5,
}


def one_of_each() -> Iterator[Any]:
    for family, registry in REGISTRIES.items():
        for name in registry:
            yield pytest.param(registry, name, id=f"{family}-{name}")


def built(registry: Registry[Any], name: str) -> Any:
    empty = [p.name for p in signature(registry[name]).parameters.values() if p.default is p.empty]
    given = {parameter: NEEDED[parameter] for parameter in empty}
    if registry is POLICIES:
        given |= POLICIES[name].parameters_at(0.5)
    return registry.build(name, **given)


@pytest.mark.parametrize(("registry", "name"), list(one_of_each()))
def test_every_member_comes_back_from_its_plain_values(registry: Registry[Any], name: str) -> None:
    value = built(registry, name)
    assert isinstance(value, registry.base)
    config = json.loads(json.dumps(registry.config(value)))
    assert config["name"] == name
    assert set(config) - {"name"} <= set(registry.parameters(name))
    assert registry.from_config(config) == value
    assert registry.build(**config) == value


@pytest.mark.parametrize("registry", REGISTRIES.values(), ids=REGISTRIES)
def test_wrong_names_and_parameters_suggest_the_right_ones(registry: Registry[Any]) -> None:
    name = next(iter(registry))
    with pytest.raises(ConfigError, match=f"there is no {registry.kind} '{name}x'. Did you mean '{name}'"):
        registry.build(f"{name}x")
    with pytest.raises(ConfigError, match=f"{registry.kind} '{name}' has no parameter 'nonsense'"):
        registry.build(name, nonsense=1)
    with pytest.raises(ConfigError, match=f"a {registry.kind} must be a name, or a name and parameters"):
        registry.from_config({"prune_ratio": 0.5})
    with pytest.raises(ConfigError, match=f"object is not a registered {registry.kind}; there are .*{name}"):
        registry.config(object())


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (OrderDP(0.5, select="bottom"), {"name": "orderdp", "prune_ratio": 0.5, "select": "bottom"}),
        (OrderDP(0.5, select=Trimmed(0.2)).parameters["select"], {"name": "trimmed", "share": 0.2}),
        (Probability(0.8), 0.8),
        (Probability(0.8, floor=0.1), {"name": "probability", "value": 0.8, "floor": 0.1}),
        (
            Budget(0.5, policy=Unlearned(0.3, learned=LossBelow(0.5))),
            {
                "name": "budget",
                "share": 0.5,
                "policy": {
                    "name": "unlearned",
                    "prune_ratio": 0.3,
                    "learned": {"name": "loss-below", "value": 0.5},
                    "refresh": 0.1,
                    "in_turn": True,
                    "until_pass": 12,
                    "unbiased": False,
                },
            },
        ),
        ((1, 2), [1, 2]),
        ("text", "text"),
    ],
)
def test_nested_values_are_plain(value: Any, expected: Any) -> None:
    assert plain(value) == expected


def test_wrong_names_inside_of_a_policy_are_named_too() -> None:
    with pytest.raises(ConfigError, match=r"there is no rule 'trimed'. Did you mean 'trimmed'"):
        policies.build("orderdp", prune_ratio=0.5, select={"name": "trimed"})
    with pytest.raises(ConfigError, match=r"threshold 'relative-loss' has no parameter 'shar'. Did you mean 'share'"):
        policies.build("skip-learned", learned={"name": "relative-loss", "shar": 0.1})
    with pytest.raises(ConfigError, match=r"schedule 'tail' has no parameter 'shar'. Did you mean 'share'"):
        policies.build("random", prune_ratio=0.5, schedule={"name": "tail", "shar": 0.1})
    with pytest.raises(ConfigError, match=r"policy 'random' has no parameter 'balance'. Did you mean 'balanced'"):
        policies.build("random", prune_ratio=0.5, balance=True)


def test_a_class_of_ones_own_can_be_registered() -> None:
    class Shape:
        pass

    shapes: Registry[Shape] = Registry(Shape, "shape", {})

    @shapes.register("square")
    @dataclass(frozen=True)
    class Square(Shape):
        side: float = 1.0

    assert shapes.build("square", side=2.0) == Square(2.0)
    assert plain([Square()]) == [Square()]  # no parameter is a list of members
    assert plain(Square(3.0)) == {"name": "square", "side": 3.0}
    with pytest.raises(ConfigError, match="there is a shape 'square' already"):
        shapes.register("square")


def test_a_rule_or_schedule_without_a_name_has_no_config() -> None:
    class Own(PoolRule):
        def positions(self, s: int, q: int, context: Any, count_seen: Any = None) -> Any: ...

    class Flat(Schedule):
        def ratio(self, epoch: int, epochs: int | None) -> float:
            return 0.5

    with pytest.raises(ConfigError, match="Own is not a registered rule; there are top, bottom"):
        policies.config_of(OrderDP(0.5, select=Own()))
    with pytest.raises(ConfigError, match="Flat is not a registered schedule"):
        policies.config_of(Scheduled(OrderDP(0.5), Flat()))
    with pytest.raises(ConfigError, match=r"schedule must be a schedule of orderdp\.policies, got float"):
        Scheduled(OrderDP(0.5), 0.5)  # type: ignore[arg-type]


def test_every_policy_and_method_in_the_published_records_can_be_built() -> None:
    found = set()
    for file in sorted(RECORDS.glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            config = json.loads(line).get("config", {})
            if "policy" in config:
                parameters = json.dumps(config.get("policy_parameters", {}))
                found.add((config["policy"], parameters, config.get("prune_ratio")))
    assert len(found) > 50
    for name, parameters, ratio in found:
        if name in coresets.NAMES:
            coresets.build(name, **json.loads(parameters))
        elif name not in (*RECORDED, "reduced"):
            policies.build_at(name, ratio, **json.loads(parameters))


def test_thresholds_and_rules_from_config_files() -> None:
    policy = policies.build(
        "orderdp", prune_ratio=0.5, select={"name": "mixed", "top": 0.5, "uniform": 0.5}, unbiased=True
    )
    assert policy == OrderDP(0.5, select=Mixed(top=0.5, uniform=0.5), unbiased=True)
    learned = policies.build("skip-learned", learned={"name": "relative-loss", "share": 0.05})
    assert learned.learned == RelativeLoss(0.05)
