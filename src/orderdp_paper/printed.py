"""The numbers that the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = [
    "ABLATION",
    "ARCHITECTURES",
    "COSINE",
    "DYNAMIC",
    "IMAGENET",
    "IMAGENET_RATIOS",
    "JACCARD",
    "MOTIVATION",
    "OPTIMIZERS",
    "STABILITY",
    "STATIC",
    "TIME",
    "TIME_TO_ACCURACY",
    "USAGE",
    "VIT",
    "Number",
    "Printed",
    "read_grid",
]


class Number(NamedTuple):
    """A printed number, and the deviation printed with it."""

    value: float
    deviation: float | None = None


Cells = Mapping[str, Mapping[str, Mapping[str, Number]]]


@dataclass(frozen=True)
class Printed:
    """A table or figure of the paper.

    Attributes:
        source: Name of the table or figure.
        setting: Conditions of the measurement.
        values: Numbers by group, row and column; empty for figures printed without numbers.
        claim: Claim of the text about it.
    """

    source: str
    setting: str
    values: Cells = field(default_factory=dict)
    claim: str = ""

    def number(self, group: str, row: str, column: str) -> Number | None:
        """Return the number printed there, or None."""
        return self.values.get(group, {}).get(row, {}).get(column)


def read_grid(groups: Sequence[str], columns: Sequence[str], text: str) -> Cells:
    """Parse a printed table into numbers by group, row and column.

    >>> read_grid(["A", "B"], ["30", "50"], "Some Method  94.6 93.3±0.1  73.8 -")["A"]["Some Method"]["50"]
    Number(value=93.3, deviation=0.1)
    """
    values: dict[str, dict[str, dict[str, Number]]] = {group: {} for group in groups}
    places = [(group, column) for group in groups for column in columns]
    for line in text.strip().splitlines():
        name, _, rest = line.strip().partition("  ")
        for (group, column), cell in zip(places, rest.split(), strict=True):
            row = values[group].setdefault(name, {})
            if cell != "-":
                value, _, deviation = cell.partition("±")
                row[column] = Number(float(value), float(deviation) if deviation else None)
    return values


_RATIOS = ("30", "50", "70")


_FIFTHS = ("0-20%", "20-40%", "40-60%", "60-80%", "80-100%", "100%")


STATIC = Printed(
    "Table 1",
    "200 epochs",
    read_grid(
        ["CIFAR-10, ResNet-18", "CIFAR-100, ResNet-18"],
        _RATIOS,
        """
        Full data  95.6±0.1 95.6±0.1 95.6±0.1  78.2±0.1 78.2±0.1 78.2±0.1
        Static Random  94.6 93.3 90.2  73.8 72.1 69.7
        CD  95.0 94.3 90.8  74.2 72.3 70.3
        Herding  92.2 88.0 80.1  73.1 71.8 69.6
        K-Center  94.7 93.9 90.9  74.1 72.2 70.2
        Least Confidence  95.0 94.5 90.3  74.2 72.3 69.8
        Margin  94.9 94.3 90.9  74.0 72.2 70.2
        Forgetting  94.7 94.1 91.7  75.3 73.1 69.9
        GraNd-4  95.3 94.6 91.2  74.6 71.4 68.8
        DeepFool  95.1 94.1 90.0  74.2 73.2 69.8
        Craig  94.8 93.3 88.4  74.4 71.9 69.7
        Glister  95.2 94.0 90.9  74.6 73.2 70.4
        Influence  93.1 91.3 88.3  74.4 72.0 68.9
        EL2N-2  94.4 93.2 89.8  74.1 71.0 68.5
        EL2N-20  95.3 95.1 91.9  77.2 72.1 -
        DP  94.9 93.8 90.8  77.2 73.1 -
        OrderDP  95.6 95.3 95.0  78.2 77.9 76.7
        """,
    ),
    claim="OrderDP is ahead of every static method at every ratio",
)


DYNAMIC = Printed(
    "Table 2",
    "200 epochs",
    read_grid(
        ["CIFAR-10, ResNet-18", "CIFAR-10, ResNet-50", "CIFAR-100, ResNet-18", "CIFAR-100, ResNet-50"],
        _RATIOS,
        """
        Full data  95.6±0.1 95.6±0.1 95.6±0.1  95.6±0.1 95.6±0.1 95.6±0.1  78.2±0.1 78.2±0.1 78.2±0.1  80.6±0.1 80.6±0.1 80.6±0.1
        Dynamic Random  94.8 94.5 93.0  95.1 94.9 93.6  77.3 75.3 72.8  77.9 76.1 73.9
        Epsilon-greedy  95.2 94.9 94.1  95.4 95.1 94.3  76.4 74.8 72.9  77.2 76.3 74.1
        UCB  95.3 94.7 93.9  95.5 95.0 94.2  77.3 75.3 73.2  78.0 76.5 74.3
        InfoBatch  95.6 95.0 94.5  95.6 95.3 94.7  78.1 77.7 75.9  80.4 78.6 76.4
        OrderDP  95.6 95.3 95.0  95.6 95.4 95.0  78.2 77.9 76.7  80.6 79.8 77.9
        """,  # noqa: E501
    ),
    claim="OrderDP is ahead of every dynamic method, and as good as full data at 30 %",
)


IMAGENET = Printed(
    "Table 3",
    "90 epochs, two L40 cards",
    read_grid(
        ["ImageNet-1K, ResNet-50"],
        ["accuracy", "hours", "node hours"],
        """
        Full data  76.4±0.2 35.2 70.4
        Dynamic Random  73.4±0.3 21.1 42.2
        Epsilon-greedy  75.2±0.3 21.1 42.2
        UCB  75.4±0.3 21.1 42.2
        InfoBatch  75.6±0.2 21.6 43.2
        OrderDP  76.4±0.2 21.5 43.0
        """,
    ),
    claim="OrderDP is as good as full data at 40 %, in 61 % of the time",
)


IMAGENET_RATIOS = Printed(
    "Table 4",
    "90 epochs",
    read_grid(
        ["ImageNet-1K, ResNet-50"],
        ["30", "40", "60"],
        """
        Full data  76.4±0.1 76.4±0.1 76.4±0.1
        InfoBatch  76.4 75.6 74.9
        OrderDP  76.4 76.4 76.0
        """,
    ),
    claim="OrderDP loses nothing up to 40 % and 0.4 points at 60 %",
)


VIT = Printed(
    "Table 5",
    "ImageNet-1K; ViT-B is pretrained as a masked autoencoder for 300 epochs and fine-tuned for 100",
    read_grid(
        ["R-50 (timm)", "Swin-T", "ViT-B (MAE)"],
        ["accuracy", "saved"],
        """
        Full data  78.4 0.0  81.5 0.0  82.8 0.0
        OrderDP  78.3 29.8  81.4 22.1  82.8 30.8
        """,
    ),
    claim="no loss above 0.1 points under timm's recipe and on vision transformers",
)


ARCHITECTURES = Printed(
    "Table 6",
    "200 epochs (ImageNet-1K: 90); at the largest ratio without loss",
    read_grid(
        [
            "CIFAR-10, ResNet-18",
            "CIFAR-10, ResNet-50",
            "CIFAR-100, ResNet-18",
            "CIFAR-100, ResNet-50",
            "ImageNet-1K, ResNet-18",
            "ImageNet-1K, ResNet-50",
        ],
        ["accuracy", "saved"],
        """
        Full data  95.6 0.0  95.6 0.0  78.2 0.0  80.6 0.0  70.5 0.0  76.4 0.0
        InfoBatch  95.5 36.5  95.6 37.1  78.2 30.8  80.6 36.3  70.4 21.8  76.4 34.3
        OrderDP  95.5 41.2  95.6 42.6  78.2 35.8  80.6 41.1  70.5 27.3  76.5 39.8
        """,
    ),
    claim="OrderDP can leave out 4 to 6 points more than InfoBatch without loss",
)


OPTIMIZERS = Printed(
    "Table 7",
    "CIFAR-10, ResNet-50, 200 epochs",
    read_grid(
        ["SGD", "AdamW", "LARS", "LAMB"],
        ["accuracy", "saved"],
        """
        Full data  95.6 0.0  94.3 0.0  95.5 0.0  95.0 0.0
        InfoBatch  95.6 37.1  94.3 37.0  95.5 37.1  95.0 37.1
        OrderDP  95.6 42.6  94.4 42.4  95.5 42.5  95.0 42.6
        """,
    ),
    claim="no loss at about 42.5 %, whatever the optimizer",
)


JACCARD = Printed(
    "Table 8",
    "200 epochs, learning rate 0.03, 5 runs",
    read_grid(
        ["40", "70"],
        _FIFTHS,
        """
        InfoBatch  0.583±0.050 0.496±0.010 0.479±0.003 0.481±0.006 0.512±0.010 0.522±0.007  0.593±0.012 0.532±0.024 0.459±0.019 0.403±0.018 0.455±0.036 0.512±0.012
        OrderDP  0.645±0.057 0.692±0.023 0.713±0.008 0.743±0.023 0.757±0.034 0.767±0.008  0.552±0.049 0.592±0.016 0.647±0.020 0.661±0.018 0.678±0.023 0.704±0.090
        """,  # noqa: E501
    ),
    claim="OrderDP keeps more of the same samples from epoch to epoch, and ever more of them",
)


STABILITY = Printed(
    "Table 9",
    "200 epochs, learning rate 0.03, 61 % left out, 10 runs",
    read_grid(
        ["accuracy", "gradient norm"],
        ["0-30%", "30-50%", "50-70%", "70-100%", "100%"],
        """
        Epsilon-greedy  48.01±4.60 49.77±2.54 52.61±1.42 66.24±1.23 74.77±0.30  3.08±1.19 3.49±0.62 2.78±0.57 2.05±0.45 1.53±0.37
        UCB  49.70±4.80 50.66±2.31 54.34±1.82 67.97±1.12 75.41±0.40  4.08±1.69 3.69±1.02 2.99±0.27 2.35±0.38 1.33±0.14
        InfoBatch  45.74±3.56 52.08±2.55 47.72±3.63 68.92±3.01 76.72±0.70  7.35±1.78 5.88±1.24 4.35±9.48 3.56±4.55 2.89±1.67
        OrderDP  48.00±3.23 56.00±2.01 61.00±1.34 72.00±0.56 78.32±0.20  4.08±1.19 3.49±0.62 2.78±0.47 2.05±0.55 1.03±0.33
        Full data  56.58±1.56 62.36±0.76 66.84±0.52 72.24±0.40 80.60±0.20  3.88±0.79 3.09±0.41 2.45±0.42 1.93±0.55 0.88±0.20
        """,  # noqa: E501
    ),
    claim="OrderDP's gradients and accuracies spread less over runs than InfoBatch's",
)


COSINE = Printed(
    "Table 11",
    "200 epochs, learning rate 0.03, 5 runs",
    read_grid(
        ["40", "70"],
        _FIFTHS,
        """
        InfoBatch  0.915±0.044 0.940±0.008 0.916±0.007 0.904±0.011 0.897±0.008 0.895±0.009  0.825±0.037 0.807±0.027 0.763±0.021 0.758±0.023 0.743±0.026 0.716±0.029
        OrderDP  0.943±0.035 0.951±0.007 0.934±0.008 0.921±0.009 0.908±0.014 0.906±0.011  0.853±0.048 0.896±0.018 0.901±0.015 0.893±0.014 0.868±0.021 0.844±0.018
        """,  # noqa: E501
    ),
    claim="OrderDP's gradient points more nearly where that of all data points",
)


MOTIVATION = Printed(
    "Figure 1",
    "200 epochs, 70 % left out",
    read_grid(["correlation"], ["accuracy with gradient norm"], "Full data  -0.93"),
    claim="under full data accuracy follows the gradient norm (R = -0.93); InfoBatch's norms are larger and jump",
)


TIME = Printed(
    "Figure 3",
    "200 epochs",
    read_grid(["CIFAR-10, ResNet-18", "CIFAR-100, ResNet-18"], ["largest ratio reached"], "InfoBatch  77.9  72.2"),
    claim="OrderDP is ahead at every ratio and reaches ratios that InfoBatch cannot",
)


ABLATION = Printed(
    "Figure 4",
    "200 epochs",
    claim="the same accuracy for all decompositions of a ratio; a smooth fall as the ratio grows",
)


USAGE = Printed(
    "the figures on sample usage",
    "200 epochs",
    claim="no sample is never used, even at 99 %",
)


TIME_TO_ACCURACY = Printed(
    "the figures on time to accuracy",
    "200 epochs",
    claim="OrderDP's accuracy rises faster than that of InfoBatch and Random",
)
