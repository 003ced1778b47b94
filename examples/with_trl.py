"""TRL's SFTTrainer on the standard library's docstrings, without padding: the texts of a batch share one row.

    python -m examples.with_trl --epochs 1

``PruningMixin`` stands in front of the SFTTrainer. `next_token_losses` gives each text its own loss, in padded batches
too (``--padded``). Model and tokenizer are small and made here. Needs ``pip install trl``. The lines that pruning adds
are marked.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from examples.huggingface import LENGTH, load, make_model, make_tokenizer
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

import orderdp
from datasets import Dataset
from orderdp.integrations.huggingface import PruningMixin, next_token_losses


class PruningSFTTrainer(PruningMixin, SFTTrainer):  # pruning
    """The SFTTrainer, training on what a pruner selects."""


def make_trainer(
    output: str, texts: int | None = None, epochs: int = 3, padded: bool = False, **changes: object
) -> PruningSFTTrainer:
    """Everything before ``train()``; `changes` are further settings of the SFTConfig."""
    set_seed(0)
    documents = load()[0][:texts]
    tokenizer = make_tokenizer(documents)
    tokenizer.eos_token = "[UNK]"
    rows = tokenizer(documents, truncation=True, max_length=LENGTH)["input_ids"]
    train_set = Dataset.from_dict({"input_ids": [row for row in rows if len(row) > 1]})
    settings = {
        "num_train_epochs": epochs,
        "per_device_train_batch_size": 8,
        "learning_rate": 3e-3,
        "padding_free": not padded,
        "max_length": None,  # the texts are short already
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "bf16": False,
        "use_cpu": not torch.cuda.is_available(),
        "dataloader_pin_memory": torch.cuda.is_available(),
    }
    pruner = orderdp.Pruner(orderdp.OrderDP(0.4), train_set, seed=0, epochs=epochs, shard=False)  # pruning
    return PruningSFTTrainer(
        model=make_model("words", len(tokenizer)),
        args=SFTConfig(output, **{**settings, **changes}),
        train_dataset=train_set,
        processing_class=tokenizer,
        pruner=pruner,  # pruning
        sample_losses=next_token_losses,  # pruning
    )


def main(arguments: list[str] | None = None) -> None:
    """Trains and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3, help="how many (default 3)")
    parser.add_argument("--padded", action="store_true", help="a row for each text")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, epochs=options.epochs, padded=options.padded)
        loss = trainer.train().training_loss
    if trainer.is_world_process_zero():
        print(f"training loss {loss:.3f}, with {trainer.pruner.report()['saved']:.1%} fewer samples")


if __name__ == "__main__":
    main()
