"""Effects of pruning on a training: gradients, kept sets, usage, age of scores, and metrics from records.

`Diagnostics` computes all of them in a training loop; the other names are its parts, for data from other sources.
"""

from __future__ import annotations

from orderdp.diagnostics.curves import TimeToAccuracy, accuracy_correlation, correlation, time_to_accuracy
from orderdp.diagnostics.gradients import (
    GradientCosine,
    GradientNorms,
    as_in_training,
    gradient_cosine,
    gradient_norm,
    rolling_spread,
)
from orderdp.diagnostics.kept_sets import (
    Ages,
    KeptSets,
    Stage,
    Usage,
    coverage_over_time,
    expected_jaccard,
    jaccard,
    score_ages,
    stability,
    usage_counts,
    usage_summary,
)
from orderdp.diagnostics.monitor import Design, Diagnostics, Risk, design_of, surrogate_risk

__all__ = [
    "Ages",
    "Design",
    "Diagnostics",
    "GradientCosine",
    "GradientNorms",
    "KeptSets",
    "Risk",
    "Stage",
    "TimeToAccuracy",
    "Usage",
    "accuracy_correlation",
    "as_in_training",
    "correlation",
    "coverage_over_time",
    "design_of",
    "expected_jaccard",
    "gradient_cosine",
    "gradient_norm",
    "jaccard",
    "rolling_spread",
    "score_ages",
    "stability",
    "surrogate_risk",
    "time_to_accuracy",
    "usage_counts",
    "usage_summary",
]
