"""Effects of pruning on a training: gradients, kept sets, usage, age of scores, and metrics from records.

`Diagnostics` computes all of them in a training loop; the other names are its parts, for data from other sources.
"""

from __future__ import annotations

from orderdp.diagnostics.kept_sets import (
    Ages,
    KeptSets,
    Stage,
    TimeToAccuracy,
    Usage,
    accuracy_correlation,
    correlation,
    coverage_over_time,
    expected_jaccard,
    jaccard,
    score_ages,
    stability,
    time_to_accuracy,
    usage_counts,
    usage_summary,
)
from orderdp.diagnostics.monitor import (
    Design,
    Diagnostics,
    GradientCosine,
    GradientNorms,
    Risk,
    as_in_training,
    design_of,
    gradient_cosine,
    gradient_norm,
    rolling_spread,
    surrogate_risk,
)

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
