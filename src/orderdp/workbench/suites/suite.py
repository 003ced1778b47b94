"""What a suite is: one table or figure of the paper, as the runs it takes at each scale and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from orderdp.workbench.settings import Settings
from orderdp.workbench.suites.printed import Printed

if TYPE_CHECKING:
    from orderdp.workbench.diagnosing import Closeness
    from orderdp.workbench.suites.measured import PartResults

__all__ = ["SCALES", "Method", "Part", "Planned", "Scale", "Suite", "Table"]

SCALES = ("smoke", "cpu", "paper")


@dataclass(frozen=True)
class Method:
    """A row of a table.

    Attributes:
        name: As the paper's row is called, or ours where it has none.
        policy: Name of the policy, the control or the static method.
        parameters: Its parameters.
        ratios: Its own prune ratios, where they are not those of the part.
        at_ratio: Further parameters at single ratios.
        settings: Further settings of its runs, which those of other methods do not have.
        matched: Whether it is InfoBatch, asked for the ratio that counts. Its first epoch uses all data, so the others
            must leave out more.
    """

    name: str
    policy: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ratios: tuple[float, ...] | None = None
    at_ratio: Mapping[float, Mapping[str, Any]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    matched: bool = False

    def parameters_for(self, ratio: float | None, epochs: int) -> dict[str, Any]:
        """The parameters at one ratio, in a run of so many epochs."""
        parameters = {**self.parameters, **(self.at_ratio.get(ratio, {}) if ratio is not None else {})}
        if self.matched and ratio is not None:
            parameters["target_ratio"] = round(min(0.99, ratio * epochs / max(1, epochs - 1)), 4)
        return parameters


class Planned(NamedTuple):
    """One run of a part, and which cell of its table it belongs to."""

    method: Method
    ratio: float | None
    settings: Settings


@dataclass(frozen=True)
class Part:
    """Runs that are compared with each other: one data set, one model, one recipe.

    Attributes:
        beside: The part of the paper's table that they are shown beside.
        base: Their settings, without policy, ratio and seed.
        methods: The rows.
        ratios: Prune ratios.
        seeds: One run of each for every seed.
        full_run: Seconds that a run with all data takes, on the scale's machine; for estimates.
        looks: How often a run goes through all data and what it keeps to look at their gradients; for estimates.
    """

    beside: str
    base: Mapping[str, Any]
    methods: tuple[Method, ...]
    ratios: tuple[float, ...]
    seeds: tuple[int, ...]
    full_run: float
    looks: int = 0

    def runs(self) -> Iterator[Planned]:
        """All runs, seed by seed, so that what is finished first can be compared already."""
        for seed in self.seeds:
            for method in self.methods:
                for ratio in (None,) if method.policy == "full" else method.ratios or self.ratios:
                    yield Planned(method, ratio, self._settings(method, ratio, seed))

    def _settings(self, method: Method, ratio: float | None, seed: int) -> Settings:
        parameters = method.parameters_for(ratio, self.base["epochs"])
        own = {"policy": method.policy, "policy_parameters": parameters, "prune_ratio": ratio, "seed": seed}
        # As the paper's loaders do, incomplete batches are trained on.
        return Settings.from_dict({"drop_last": False, **self.base, **method.settings, **own})

    @property
    def seconds(self) -> float:
        """Roughly what all runs take."""
        kept = [1 - (planned.ratio or 0.0) for planned in self.runs()]
        looking = self.full_run * self.looks / self.base["epochs"]  # full data need no look
        return sum(self.full_run * share + (looking * (1 + share) if share < 1 else 0.0) for share in kept)


@dataclass(frozen=True)
class Scale:
    """How a suite is run at one scale.

    Attributes:
        parts: What is run.
        machine: What the estimates are for.
        memory: What it takes, in words.
        differs: How this is not what the paper did, in a sentence or two.
    """

    parts: tuple[Part, ...]
    machine: str
    memory: str
    differs: str

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets, each once."""
        return tuple(dict.fromkeys(str(part.base["data"]) for part in self.parts))

    @property
    def seconds(self) -> float:
        """Roughly what all runs take, one after the other."""
        return sum(part.seconds for part in self.parts)


class Table(NamedTuple):
    """Cells to show, with a title above and notes below."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Suite:
    """A table or figure of the paper.

    Attributes:
        id: What it is called on the command line.
        shows: What it is about, in a sentence.
        printed: The paper's own numbers.
        scales: How it is run, by the name of the scale.
        tables: What makes tables of the results of all parts.
        figure: Which chart shows them.
        diagnose: Which of the costly diagnostics are needed.
    """

    id: str
    shows: str
    printed: Printed
    scales: Mapping[str, Scale]
    tables: Callable[[Suite, Sequence[PartResults]], list[Table]]
    figure: str
    diagnose: Closeness = False

    def runs_in(self, out: Path) -> Path:
        """The folder of its runs, by how closely they are looked at: a finished run is not run again for that."""
        return {False: out, "steps": out / "diagnosed-steps", True: out / "diagnosed"}[self.diagnose]
