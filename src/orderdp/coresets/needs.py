"""What a method asks of the proxy, declared so that what is missing is known before any work is done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Needs"]


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What must be recorded.

    Attributes:
        features: Inputs of the last linear layer.
        logits: Outputs of the last linear layer.
        labels: The class of each sample.
        correct: Whether each sample was predicted right when it was trained on, epoch by epoch.
        model: The trained model itself, and the samples.
        scores: One number for each sample, made elsewhere.
        validation: Features and logits of the validation set, where there is one.
        epoch: After how many epochs of training, or None for the end of it.
        inits: How many models, each from weights of its own; None for as many as there are.
        every_epoch: Whether features and logits are wanted after each epoch instead of after one.
    """

    features: bool = False
    logits: bool = False
    labels: bool = False
    correct: bool = False
    model: bool = False
    scores: bool = False
    validation: bool = False
    epoch: int | None = None
    inits: int | None = 1
    every_epoch: bool = False

    @property
    def nothing(self) -> bool:
        """Whether no model has to be trained for it."""
        return not (self.features or self.logits or self.correct or self.model)
