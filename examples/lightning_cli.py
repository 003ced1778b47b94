"""Lightning's command line: model, data, Trainer and policy in a YAML file, any of them changed by an argument.

    python -m examples.lightning_cli fit --config examples/lightning_cli.yaml --data.policy.prune_ratio 0.3

The words under ``policy`` are those of `orderdp.build`. Needs ``pip install 'jsonargparse[signatures]'``.
"""

from __future__ import annotations

from examples.with_lightning import Digits, DigitsData
from lightning.pytorch.cli import LightningCLI


def main(arguments: list[str] | None = None) -> LightningCLI:
    """Trains, and prints what was saved."""
    cli = LightningCLI(Digits, DigitsData, args=arguments, save_config_callback=None)
    print(f"{cli.datamodule.pruner.policy}: {cli.datamodule.pruner.report()['saved']:.1%} fewer samples")
    return cli


if __name__ == "__main__":
    main()
