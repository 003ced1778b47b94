"""The command ``orderdp coreset``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from orderdp.cli._common import add_json, as_ratio, say, say_json
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.coresets import Proxy
    from orderdp.experiments.config import MethodSpec

__all__ = ["DESCRIPTION", "NAME", "SUMMARY", "add", "run"]


NAME = "coreset"


SUMMARY = "choose a part of the data once, before training"


DESCRIPTION = """Chooses a coreset with a static method and writes its indices (and weights and scores, where the method
has them) to an .npz file. A proxy model is trained first, unless you bring features, logits or scores of your own.

examples:
  orderdp coreset --list
  orderdp coreset --card el2n
  orderdp coreset --method el2n --data digits --model mlp --prune-ratio 0.5 --out coreset.npz
  orderdp coreset --method k-center --data fashion-mnist --prune-ratio 0.7 --cache proxies --out coreset.npz
  orderdp coreset --method moderate --from-features features.npz --prune-ratio 0.5 --out coreset.npz

A method's parameters follow its name: NAME:key=value. With --cache ten methods cost one training.
"""


def add(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("--list", action="store_true", help="list the methods")
    parser.add_argument("--card", metavar="NAME", help="print the card of a method: its rule, parameters, cost, limits")
    parser.add_argument("--method", metavar="M", help="name of the method, with parameters as NAME:key=value")
    parser.add_argument("--prune-ratio", type=as_ratio, metavar="R", help="fraction left out, in [0, 1)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="output file, .npz")
    parser.add_argument("--data", metavar="D", help="data set: name or path; see orderdp data")
    parser.add_argument(
        "--from-features", type=Path, metavar="FILE", help=".npz with features, logits, labels or scores"
    )
    parser.add_argument("--model", default="cnn", metavar="M", help="model of the proxy (default: cnn)")
    parser.add_argument("--width", type=int, metavar="N", help="width of the model, for models that have one")
    parser.add_argument(
        "--proxy-epochs", type=int, default=10, metavar="N", help="epochs that the proxy is trained (default: 10)"
    )
    parser.add_argument("--proxy-inits", type=int, default=1, metavar="N", help="number of proxies (default: 1)")
    parser.add_argument(
        "--cache", type=Path, metavar="DIR", help="folder for trained proxies; later commands reuse them"
    )
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="folder that is searched for data first")
    parser.add_argument(
        "--device", default="auto", metavar="NAME", help="cpu, cuda, ... (default: a GPU if there is one)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="seed of all random draws (default: 0)")
    add_json(parser)


def run(options: argparse.Namespace) -> None:
    """Run the command."""
    from orderdp.coresets import NAMES, card, coreset_command, summary
    from orderdp.experiments.config import parse_method
    from orderdp.experiments.runner import make_folder
    from orderdp.report.tables import show

    if options.card is not None:
        text = card(options.card)
        if options.json:
            say_json({"name": options.card, "summary": summary(options.card), "card": text})
        else:
            say(text)
        return
    if options.list and options.json:
        say_json([{"name": name, "summary": summary(name)} for name in NAMES])
        return
    if options.list:
        show("orderdp coreset --method NAME", ("name", "what it keeps"), [(name, summary(name)) for name in NAMES])
        return
    if options.method is None or options.prune_ratio is None or options.out is None:
        raise ConfigError("give --method, --prune-ratio and --out; --list shows the methods, --card NAME one of them.")
    method = parse_method(options.method, NAMES, "static method")
    if (options.data is None) == (options.from_features is None):
        raise ConfigError("give either --data D or --from-features FILE.")
    make_folder(options.out.parent)  # fails before the proxy is trained
    outcome = coreset_command(
        method.policy,
        options.prune_ratio,
        options.out,
        proxy=None if options.data is None else _proxy(options, method),
        from_features=options.from_features,
        seed=options.seed,
        **method.parameters,
    )
    if options.json:
        say_json(
            {
                "file": options.out,
                "method": outcome.method,
                "prune_ratio": outcome.prune_ratio,
                "samples": len(outcome.selection),
                "proxy_seconds": outcome.proxy_seconds,
                "selection_seconds": outcome.selection_seconds,
            }
        )
        return
    say(
        f"{len(outcome.selection):,} samples are in {options.out}; the proxy took {outcome.proxy_seconds:.1f} s, "
        f"the choice {outcome.selection_seconds:.1f} s."
    )


def _proxy(options: argparse.Namespace, method: MethodSpec) -> Proxy:
    from orderdp.experiments.config import RunOptions, Settings
    from orderdp.experiments.runner import Runner, check
    from orderdp.experiments.static import make_proxy

    settings = Settings(
        data=options.data,
        model=options.model,
        width=options.width,
        seed=options.seed,
        proxy_epochs=options.proxy_epochs,
        proxy_inits=options.proxy_inits,
        policy=method.policy,
        policy_parameters=method.parameters,
        prune_ratio=options.prune_ratio,
    )
    check(settings)
    runner = Runner(RunOptions(Path(), data_dir=options.data_dir, device=options.device))
    return make_proxy(settings, runner.task(settings), options.cache, runner.device)
