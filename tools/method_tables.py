"""The tables at the top of the family pages of policies and coresets, from the classes and their docstrings.

    python -m tools.method_tables       # writes the tables of all pages

A table stands between two comments, the first of which names its rows:

    <!-- methods: epsilon-greedy ucb -->
    <!-- end -->
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import numpy as np

from orderdp import Pruner, coresets
from orderdp.errors import ConfigError, OrderDPError
from orderdp.policies import Replay
from orderdp.policies.registry import NAMES, build_at

__all__ = ["PAGES", "filled", "main"]

DOCS = Path(__file__).parent.parent / "docs"
PAGES = [page for folder in ("policies", "coresets") for page in sorted((DOCS / folder).glob("*.md"))]

_TABLE = re.compile(r"(<!-- methods: ([^\n]+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)

#: Bytes per sample of every score table: score, usage and the epoch of the last refresh.
BASE_BYTES = 8

#: Parameters without a default, where `build_at` does not set them.
GIVEN: dict[str, dict[str, Any]] = {"adaptive": {"tolerance": 0.3}}

REFERENCES = {
    "orderdp": "*OrderDP: A Theoretically Guaranteed Lossless Dynamic Data Pruning Framework*, ICLR 2026",
    "budget": "ours",
    "spaced-repetition": "ours",
    "unlearned": "ours",
    "skip-learned": "ours",
    "adaptive": "ours; the paper leaves adaptive ratios to future work",
    "full": "the baseline",
    "random": "the control",
    "rs2": "Okanovic et al., *Repeated Random Sampling for Minimizing the Time-to-Accuracy of Learning*, 2024",
    "proxy-plan": "`airbench96_faster.py` of Keller Jordan's *cifar10-airbench*, 2024",
    "epsilon-greedy": "Raju et al., *Accelerating Deep Learning with Dynamic Data Pruning*, 2021",
    "ucb": "Raju et al., 2021",
    "infobatch": "Qin et al., *InfoBatch*, ICLR 2024",
    "infobatch-quantile": "the segmentation code of *InfoBatch*",
    "seta": "Zhou et al., *SeTa*, 2025",
    "repb": "RePB; no published code could be checked",
    "kakurenbo": "Nguyen et al., *KAKURENBO*, 2023",
    "selective-backprop": "Jiang et al., 2019",
    "selective-by-rank": "Composer's selective backprop, after Jiang et al., 2019",
    "online-batch-selection": "Loshchilov and Hutter, 2015",
    "instance-early-stopping": "Yuan et al., *IES*, 2025",
    "progressive-dropout": "*Progressive Data Dropout*, 2025, by difficulty",
    "active-bias": "Chang et al., 2017, as recalled",
    "dynamic-uncertainty": "He et al., 2024, as recalled",
    "calibrated": "Ayed and Hayou, 2023; GOSS of LightGBM, Ke et al., 2017",
    "static-random": "the control",
    "contextual-diversity": "Agarwal et al., *Contextual Diversity for Active Learning*, 2020",
    "herding": "Welling, *Herding Dynamical Weights to Learn*, 2009",
    "k-center": "Sener and Savarese, *A Core-Set Approach*, 2018; Gonzalez, 1985",
    "least-confidence": "Coleman et al., *Selection via Proxy*, 2020",
    "entropy": "Coleman et al., 2020",
    "margin": "Coleman et al., 2020",
    "forgetting": "Toneva et al., *An Empirical Study of Example Forgetting*, 2019",
    "grand": "Paul et al., *Deep Learning on a Data Diet*, 2021",
    "el2n": "Paul et al., 2021",
    "deepfool": "Moosavi-Dezfooli et al., *DeepFool*, 2016; for selection, Ducoffe and Precioso, 2018",
    "craig": "Mirzasoleiman et al., *Coresets for Data-efficient Training*, 2020",
    "grad-match": "Killamsetty et al., *GRAD-MATCH*, 2021",
    "glister": "Killamsetty et al., *GLISTER*, 2021",
    "influence": "Koh and Liang, *Understanding Black-box Predictions via Influence Functions*, 2017",
    "generalization-pruning": "Yang et al., *Dataset Pruning* (DP), 2023",
    "prototypes": "Sorscher et al., *Beyond Neural Scaling Laws*, 2022",
    "facility-location": "Iyer et al., *Submodular Combinatorial Information Measures*, 2021",
    "graph-cut": "Iyer et al., 2021",
    "cal": "Margatina et al., *Active Learning by Acquiring Contrastive Examples*, 2021",
    "moso": "Tan et al., *Data Pruning via Moving-one-Sample-out*, 2023",
    "ccs": "Zheng et al., *Coverage-centric Coreset Selection*, 2023",
    "moderate": "Xia et al., *Moderate Coreset*, 2023",
    "own-scores": "scores of other tools",
}


def filled(page: str) -> str:
    """The page with the tables that the classes give."""

    def table(match: re.Match[str]) -> str:
        head, names, _, end = match.groups()
        rows = [_coreset(name) if name in coresets.NAMES else _policy(name) for name in names.split()]
        titles = list(rows[0])
        cells = [titles, *([row[title] for title in titles] for row in rows)]
        lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in cells]
        lines.insert(1, f"|{'---|' * len(titles)}")
        return f"{head}\n{chr(10).join(lines)}\n\n{end}"

    return _TABLE.sub(table, page)


def _policy(name: str) -> dict[str, str]:
    kind = NAMES.get(name, Replay)
    row = {"policy": f"[{name}](#{name})", "selects": _summary(kind), "with defaults": f"`policies.{_call(kind)}`"}
    if kind is Replay:
        facts = {"needs": "a recorded plan", "bytes per sample": "1/8 per epoch of the plan", "steps": "exact"}
    else:
        policy = build_at(name, 0.3, **GIVEN.get(name, {}))
        columns = getattr(policy, "columns", ())
        size = BASE_BYTES + sum(np.dtype(column.dtype).itemsize for column in columns)
        facts = {"needs": _needs(policy), "bytes per sample": str(size), "steps": _steps(policy)}
    return {**row, **facts, "reference": REFERENCES[name]}


def _needs(policy: Any) -> str:
    """What a loop must give to the pruner and to `update`."""
    if not getattr(policy, "needs_feedback", True):
        return "nothing"
    compute_columns = getattr(policy, "compute_columns", None)
    parameters = {} if compute_columns is None else inspect.signature(compute_columns).parameters
    told = [f"`{name}`" for name, found in parameters.items() if found.kind is inspect.Parameter.KEYWORD_ONLY]
    try:
        next(iter(Pruner(policy, 100).sampler))
    except ConfigError as error:
        if "epochs" not in str(error):
            raise
        told.append("`epochs`")
    return ", ".join(["losses", *told])


def _steps(policy: Any) -> str:
    try:
        Pruner(policy, 1000, epochs=4).steps(4, batch_size=10, drop_last=True)
    except OrderDPError:
        return "within bounds"
    return "exact"


def _coreset(name: str) -> dict[str, str]:
    kind = coresets.NAMES[name]
    needs = coresets.build(name).needs
    arrays = ("features", "logits", "labels", "correct", "model", "scores", "validation")
    if needs.nothing:
        proxy = "none"
    else:
        epochs = "after each epoch" if needs.every_epoch else f"{needs.epoch} epochs" if needs.epoch else "all epochs"
        proxy = epochs if needs.inits == 1 else f"{epochs}, all models"
    return {
        "method": f"[{name}](#{name})",
        "selects": _summary(kind),
        "with defaults": f"`coresets.{_call(kind)}`",
        "needs": ", ".join(array for array in arrays if getattr(needs, array)) or "nothing",
        "trained proxy": proxy,
        "reference": REFERENCES[name],
    }


def _summary(kind: type) -> str:
    """The first paragraph of a docstring, which is one sentence."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _call(kind: type) -> str:
    """The constructor with its defaults."""
    parameters = inspect.signature(kind).parameters.values()
    texts = [
        found.name if found.default is found.empty else f"{found.name}={_text(found.default)}" for found in parameters
    ]
    return f"{kind.__name__}({', '.join(texts)})"


def _text(value: Any) -> str:
    if isinstance(value, float) and len(repr(value)) > 8:
        return f"{value:.4g}"
    return repr(value).replace("'", '"')


def main() -> None:
    """Writes the tables."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
