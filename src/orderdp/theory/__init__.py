"""The mathematics of OrderDP as functions. Numpy only.

Letters are those of the paper: n samples, a pool of s of them, of which q are kept; rank j = 1 is the largest loss.
"""

from __future__ import annotations

from orderdp.theory.plan import Coverage, Plan, coverage, plan
from orderdp.theory.rank_rules import Bottom, Mixed, RankRule, Top, Trimmed, Window
from orderdp.theory.weights import (
    BiasTerms,
    SkipChances,
    averaged_convergence_bound,
    bias_terms,
    convergence_bound,
    generalization_bound,
    gradient_bound,
    horvitz_thompson,
    learned_rates,
    limit_weights,
    longest_gap,
    skip_bias_bound,
    skip_chances,
    skip_surrogate_loss,
    spaced_bias_bound,
    spaced_surrogate_loss,
    stratified_weights,
    stratum_sizes,
    surrogate_loss,
    surrogate_weights,
    visiting_shares,
    weights,
    weights_at,
)

__all__ = [
    "BiasTerms",
    "Bottom",
    "Coverage",
    "Mixed",
    "Plan",
    "RankRule",
    "SkipChances",
    "Top",
    "Trimmed",
    "Window",
    "averaged_convergence_bound",
    "bias_terms",
    "convergence_bound",
    "coverage",
    "generalization_bound",
    "gradient_bound",
    "horvitz_thompson",
    "learned_rates",
    "limit_weights",
    "longest_gap",
    "plan",
    "skip_bias_bound",
    "skip_chances",
    "skip_surrogate_loss",
    "spaced_bias_bound",
    "spaced_surrogate_loss",
    "stratified_weights",
    "stratum_sizes",
    "surrogate_loss",
    "surrogate_weights",
    "visiting_shares",
    "weights",
    "weights_at",
]
