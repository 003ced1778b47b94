"""Commands about methods and data: ``orderdp policies``, ``coreset``, ``export`` and ``data``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from orderdp.cli._common import Command, add_json, as_ratio, complain, say, say_json
from orderdp.errors import ConfigError

if TYPE_CHECKING:
    from orderdp.coresets import Proxy
    from orderdp.experiments.config import MethodSpec

__all__ = ["CORESET", "DATA", "EXPORT", "POLICIES"]


# -- policies ----------------------------------------------------------------------------------------------------------


_POLICIES = """Which policies there are, one line each; or the card of one: its rule, parameters, cost and guarantees.

examples:
  orderdp policies
  orderdp policies infobatch
  orderdp policies --json
"""


def _add_policies(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="policy whose card is printed")
    add_json(parser)


def _run_policies(options: argparse.Namespace) -> None:
    from orderdp.policies.registry import NAMES, RECORDED, card, summary
    from orderdp.report import show

    if options.json:
        names = (*NAMES, *RECORDED) if options.name is None else (options.name,)
        told = [{"name": name, "summary": summary(name)} for name in names]
        say_json(told if options.name is None else {**told[0], "card": card(options.name)})
    elif options.name is None:
        show("orderdp policies NAME", ("name", "what it does"), [(name, summary(name)) for name in (*NAMES, *RECORDED)])
    else:
        say(card(options.name))


POLICIES = Command("policies", "list the policies, or print the card of one", _POLICIES, _add_policies, _run_policies)


# -- coreset -----------------------------------------------------------------------------------------------------------


_CORESET = """Chooses a coreset with a static method and writes its indices (and weights and scores, where the method
has them) to an .npz file. A proxy model is trained first, unless you bring features, logits or scores of your own.

examples:
  orderdp coreset --list
  orderdp coreset --card el2n
  orderdp coreset --method el2n --data digits --model mlp --prune-ratio 0.5 --out coreset.npz
  orderdp coreset --method k-center --data fashion-mnist --prune-ratio 0.7 --cache proxies --out coreset.npz
  orderdp coreset --method moderate --from-features features.npz --prune-ratio 0.5 --out coreset.npz

A method's parameters follow its name: NAME:key=value. With --cache ten methods cost one training.
"""


def _add_coreset(parser: argparse.ArgumentParser) -> None:
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


def _run_coreset(options: argparse.Namespace) -> None:
    from orderdp.coresets import NAMES, card, coreset_command, summary
    from orderdp.experiments.config import parse_method
    from orderdp.experiments.runner import make_folder
    from orderdp.report import show

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


CORESET = Command("coreset", "choose a part of the data once, before training", _CORESET, _add_coreset, _run_coreset)


# -- export ------------------------------------------------------------------------------------------------------------


_EXPORT = """The score of every sample, how often it was trained on, when it was last seen, and whether it is kept,
as .npz, .csv or .parquet; and a fingerprint of the kept set.

examples:
  orderdp export run.pt samples.csv
  orderdp export run.pt half.npz --keep 0.5
  orderdp export run.pt hard.parquet --keep 10000 --by score
"""


def _add_export(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="file that holds a pruner's state")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write: .npz, .csv or .parquet")
    parser.add_argument(
        "--keep",
        metavar="K",
        help="what a static subset keeps: a number of samples, or a fraction with a decimal point (default: the "
        "selection of the checkpoint's open epoch)",
    )
    parser.add_argument(
        "--by", choices=["usage", "score"], default="usage", help="keep the most used, or the hardest (default usage)"
    )


def _run_export(options: argparse.Namespace) -> None:
    from orderdp.checkpoint import load_checkpoint
    from orderdp.export import columns_of_state, find_state, write_columns

    keep: float | None = None
    if options.keep is not None:
        try:
            keep = float(options.keep) if "." in options.keep else int(options.keep)
        except ValueError:
            raise ConfigError(f"--keep must be a number of samples or a fraction, got {options.keep!r}.") from None
    columns, selection = columns_of_state(find_state(load_checkpoint(options.checkpoint)), keep, options.by)
    write_columns(options.out, columns, selection)
    n, kept = len(columns["index"]), int(columns["kept"].sum())
    say(f"{options.out}: {n} samples, {kept} kept, selection {selection}")


EXPORT = Command(
    "export", "scores, counts and a static subset of a checkpoint, as a file", _EXPORT, _add_export, _run_export
)


# -- data --------------------------------------------------------------------------------------------------------------


_DATA = """Data sets by name. Nothing is ever downloaded unless you ask for it here; what comes is checked.

examples:
  orderdp data
  orderdp data list --json
  orderdp data fetch fashion-mnist
  orderdp data fetch cifar10 --data-dir /data
  orderdp data where fashion-mnist
"""


def _add_data(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action", nargs="?", choices=("list", "fetch", "where"), default="list", help="what to do (default: list)"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="name of the data set")
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the data sets (default: the user's cache)"
    )
    add_json(parser)


def _run_data(options: argparse.Namespace) -> int:
    """Return 1 if the data set is not here."""
    from orderdp import datasets as data

    if options.action == "list":
        _list(options)
        return 0
    if options.name is None:
        raise ConfigError(f"data {options.action} needs the name of a data set; `orderdp data list` shows them.")
    if options.action == "fetch":
        path: Path | None = data.fetch(options.name, options.data_dir, progress=complain)
    else:
        path = data.where(options.name, options.data_dir)
    if options.json:
        say_json({"name": options.name, "path": path})
    elif path is not None:
        say(str(path))
    if path is None:
        complain(f"{options.name} is not here; get it with: orderdp data fetch {options.name}")
        return 1
    return 0


def _list(options: argparse.Namespace) -> None:
    from orderdp import datasets as data
    from orderdp.datasets.catalog import DATASETS
    from orderdp.report import show

    rows = data.list_rows(options.data_dir)
    if options.json:
        told = []
        for name, *_, get in rows:
            known, path = DATASETS[name], data.where(name, options.data_dir)
            samples = {"train_samples": known.n_train, "test_samples": known.n_test, "shape": known.shape}
            told.append({"name": name, **samples, "path": path, "get": get})
        say_json(told)
        return
    show("orderdp data fetch NAME", ("name", "samples", "shape", "where it is", "how to get it"), rows)


DATA = Command("data", "which data sets there are, where they are, and how to get them", _DATA, _add_data, _run_data)
