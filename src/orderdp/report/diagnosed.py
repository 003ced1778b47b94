"""What the page calls the diagnostics it knows. Others are shown under the names they have in the records."""

from __future__ import annotations

__all__ = ["ONLY_IN_RECORDS", "words_for"]

_SPREAD = "Mean and standard deviation over seeds."

_KNOWN = {
    "jaccard": ("Kept again", "Similarity (Jaccard) of what an epoch kept with what the epoch before kept."),
    "age_mean": ("Age of scores", "Epochs since a score was refreshed, mean over the samples that have one."),
    "gradient_norm": ("Gradient norm", "Mean over the steps of an epoch."),
    "cosine": (
        "Cosine with the full gradient",
        "Between the gradient of what the next epoch would keep and that of all data, at the same weights.",
    ),
    "surrogate_risk": (
        "Surrogate risk",
        "What the rule's mean loss is on average over draws, by the scores: last-seen losses, or under epsilon-greedy "
        "their averages.",
    ),
    "bias": ("Bias of the surrogate", "By how much the surrogate risk exceeds the mean of the scores."),
}

#: Details of those above, of which a chart each would be too much.
ONLY_IN_RECORDS = frozenset(
    ("age_median", "age_p95", "unseen", "usage_min", "usage_max", "gradient_norm_std", "bias_bound")
)


def words_for(name: str) -> tuple[str, str]:
    """Title and explanation.

    >>> words_for("kept_overlap")
    ('Kept overlap', 'Mean and standard deviation over seeds.')
    """
    plain = name.replace("_", " ")
    title, text = _KNOWN.get(name, (plain[:1].upper() + plain[1:], ""))
    return title, f"{text} {_SPREAD}".strip()
