"""`make demo`: does pruning hold on real images, and what does it save?

Compares full data, full data for fewer epochs, a random share, InfoBatch, OrderDP and `Unlearned`, each at 40 % pruned,
with three seeds; prints the table and writes a page. Takes Fashion-MNIST if it can be had within seconds, handwritten
digits otherwise. About three minutes on two cores; a second call goes on where the first one ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from orderdp import datasets as data
from orderdp.cli import main
from orderdp.errors import OrderDPError

OUT = Path("build/demo")
# A plain network: three seeds of five policies over all 60,000 images would take a convolutional one half an hour.
FASHION = ["--data", "fashion-mnist", "--model", "mlp", "--no-augment", "--epochs", "10"]
DIGITS = ["--data", "digits", "--model", "mlp", "--epochs", "30", "--batch-size", "32"]


def choose_data() -> tuple[str, list[str]]:
    """Fashion-MNIST, or what is always there."""
    try:
        data.fetch("fashion-mnist", progress=print, timeout=5)
    except OrderDPError as error:
        print(f"Fashion-MNIST cannot be had here, so this is the demo on handwritten digits.\n{error}\n")
        return "digits", DIGITS
    return "fashion-mnist", FASHION


if __name__ == "__main__":
    name, settings = choose_data()
    policies = [
        "--policies",
        "full,reduced,random,infobatch,orderdp,unlearned",
        "--prune-ratios",
        "0.4",
        "--seeds",
        "0,1,2",
    ]
    sys.exit(main(["compare", *settings, *policies, "--jobs", "2", "--out", str(OUT / name)]))
