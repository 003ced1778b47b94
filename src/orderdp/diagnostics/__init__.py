"""What pruning does to a training: gradients, kept sets, usage, the age of scores, and what can be read from records.

`Diagnostics` is all of it in a training loop; the rest are its parts, for numbers that come from elsewhere.
"""

from __future__ import annotations

from orderdp.diagnostics.ages import Ages, score_ages
from orderdp.diagnostics.cosine import GradientCosine, gradient_cosine
from orderdp.diagnostics.curves import TimeToAccuracy, accuracy_correlation, correlation, time_to_accuracy
from orderdp.diagnostics.gradients import GradientNorms, gradient_norm, rolling_spread
from orderdp.diagnostics.kept_sets import KeptSets, expected_jaccard, jaccard
from orderdp.diagnostics.risk import Design, Risk, design_of, surrogate_risk
from orderdp.diagnostics.stability import Stage, stability
from orderdp.diagnostics.untouched import as_in_training
from orderdp.diagnostics.usage import Usage, coverage_over_time, usage_counts, usage_summary
from orderdp.diagnostics.watching import Diagnostics

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
