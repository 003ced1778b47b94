"""Hugging Face's Trainer on the standard library's docstrings: from which module is it, or what is the next word?

    python examples/huggingface.py [--task classify|words] [--output runs/docstrings] [--resume]
    torchrun --standalone --nproc-per-node 2 examples/huggingface.py

Models and tokenizer are small and made here, so nothing is downloaded. With ``--resume`` it goes on from the last
checkpoint in the output folder. The lines that pruning adds are marked.
"""

from __future__ import annotations

import argparse
import ast
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.trainers import WordLevelTrainer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)

import orderdp
from orderdp.integrations.huggingface import PruningTrainer

MODULES = ("_pydecimal", "logging", "ipaddress", "_pyio")
LENGTH = 32  # words of a docstring that are read


def load() -> tuple[list[str], list[int]]:
    """Docstrings of functions and classes, and from which of the modules each is."""
    texts, labels = [], []
    for label, name in enumerate(MODULES):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            if text:
                texts.append(text)
                labels.append(label)
    return texts, labels


def make_tokenizer(texts: list[str]) -> PreTrainedTokenizerFast:
    """One token a word, for the words that occur twice."""
    tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), Whitespace()
    tokenizer.train_from_iterator(texts, WordLevelTrainer(min_frequency=2, special_tokens=["[PAD]", "[UNK]"]))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")


def make_dataset(
    tokenizer: PreTrainedTokenizerFast, texts: list[str], labels: list[int] | None
) -> list[dict[str, Any]]:
    """Items as a Trainer takes them, of different lengths; the collator pads."""
    encoded = tokenizer(texts, truncation=True, max_length=LENGTH, return_token_type_ids=False)
    items = [{name: encoded[name][i] for name in ("input_ids", "attention_mask")} for i in range(len(texts))]
    return items if labels is None else [{**item, "labels": label} for item, label in zip(items, labels, strict=True)]


def make_model(task: str, words: int) -> PreTrainedModel:
    """A small model that knows nothing yet."""
    sizes = {
        "vocab_size": words,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": LENGTH,
    }
    if task == "classify":
        return BertForSequenceClassification(BertConfig(**sizes, num_labels=len(MODULES)))
    return LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, bos_token_id=None, eos_token_id=None))


def accuracy(prediction: Any) -> dict[str, float]:
    """Share of the docstrings whose module was told right."""
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def make_trainer(task: str, output: Path, epochs: int) -> PruningTrainer:
    """Everything before ``train()``."""
    set_seed(0)
    texts, labels = load()
    tokenizer = make_tokenizer(texts)
    data = make_dataset(tokenizer, texts, labels if task == "classify" else None)
    train_set, test_set = [item for i, item in enumerate(data) if i % 5], data[::5]
    pruner = orderdp.Pruner(  # pruning
        orderdp.OrderDP(prune_ratio=0.4), train_set, seed=0, epochs=epochs, shard=False
    )
    return PruningTrainer(  # pruning
        model=make_model(task, len(tokenizer)),
        args=TrainingArguments(
            output_dir=str(output),
            num_train_epochs=epochs,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            logging_steps=50,
            save_strategy="epoch",
            save_total_limit=2,
            report_to="none",
            disable_tqdm=True,
            use_cpu=not torch.cuda.is_available(),
            dataloader_pin_memory=torch.cuda.is_available(),
        ),
        train_dataset=train_set,
        eval_dataset=test_set,
        data_collator=(
            DataCollatorWithPadding(tokenizer)
            if task == "classify"
            else DataCollatorForLanguageModeling(tokenizer, mlm=False)
        ),
        compute_metrics=accuracy if task == "classify" else None,
        pruner=pruner,  # pruning
    )


def main(arguments: list[str] | None = None) -> None:
    """Trains, tests and prints, the latter in the first process only."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=("classify", "words"), default="classify")
    parser.add_argument("--epochs", type=int, default=10, help="how many in all (default 10)")
    parser.add_argument("--output", type=Path, help="where checkpoints go (default: a temporary folder)")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint there")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        trainer = make_trainer(options.task, options.output or Path(temporary), options.epochs)
        trainer.train(resume_from_checkpoint=options.resume)
        result = trainer.evaluate()
    if trainer.is_world_process_zero():
        name = "accuracy" if options.task == "classify" else "loss"
        saved = trainer.pruner.report()["saved"]
        print(f"test {name} {result[f'eval_{name}']:.3f}, with {saved:.1%} fewer samples")


if __name__ == "__main__":
    main()
