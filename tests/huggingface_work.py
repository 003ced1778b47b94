"""Small trainings with Hugging Face's Trainer, for tests in one process and, run as a program, in two."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from examples import huggingface as example
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
)

import orderdp
from orderdp.errors import ConfigError, FeedbackError
from orderdp.integrations.huggingface import INDEX, PruningTrainer

N = 45
EPOCHS, BATCH_SIZE = 3, 4
KEPT = 27


@cache
def texts() -> tuple[Any, list[str], list[int]]:
    """Tokenizer, texts and labels: docstrings of all modules in turn, of quite different lengths."""
    everything, labels = example.load()
    chosen = list(range(0, len(everything), len(everything) // N))[:N]
    return example.make_tokenizer(everything), [everything[i] for i in chosen], [labels[i] for i in chosen]


def dataset(task: str = "classify") -> list[dict[str, Any]]:
    tokenizer, documents, labels = texts()
    return example.make_dataset(tokenizer, documents, labels if task == "classify" else None)


def collator(task: str = "classify") -> Any:
    tokenizer = texts()[0]
    if task == "classify":
        return DataCollatorWithPadding(tokenizer)
    return DataCollatorForLanguageModeling(tokenizer, mlm=False)


def model(task: str = "classify", seed: int = 0, dropout: float = 0.1, **config: Any) -> PreTrainedModel:
    sizes = {
        "vocab_size": len(texts()[0]),
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": example.LENGTH,
        **config,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if task == "classify":
            drops = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
            return BertForSequenceClassification(BertConfig(**{"num_labels": 4, **drops, **sizes}))
        return LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, bos_token_id=None, eos_token_id=None))


def arguments(folder: Path, args_kind: Any = TrainingArguments, **changes: Any) -> Any:
    settings = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": BATCH_SIZE,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "dataloader_pin_memory": False,
        **changes,
    }
    return args_kind(output_dir=str(folder), **settings)


class WeightsClasses(BertForSequenceClassification):
    """A classifier with a loss of its own."""

    def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
        outputs = super().forward(input_ids, attention_mask)
        if labels is not None:
            weight = torch.tensor([1.0, 5.0, 25.0, 125.0])
            outputs["loss"] = torch.nn.functional.cross_entropy(outputs.logits.float(), labels, weight)
        return outputs


def smoothed_loss(logits: torch.Tensor, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    return torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.5)


def model_with_own_loss(task: str = "classify") -> PreTrainedModel:
    own = model(task)
    if task == "classify":
        own = WeightsClasses(own.config)
    else:
        own.loss_function = smoothed_loss
    with torch.no_grad():  # or logits were all but alike, and so both losses
        head = own.classifier if task == "classify" else own.lm_head
        head.weight.mul_(20)
    return own


class Recorder:
    """Notes the indices of every batch that is trained on, by the pruner's epoch; for a Trainer class."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if INDEX in inputs:
            visited = self.__dict__.setdefault("visited", [])
            visited.append((self.pruner.epoch, inputs[INDEX].tolist()))
        return super().compute_loss(model, inputs, *args, **kwargs)


class RecordingTrainer(Recorder, PruningTrainer):
    pass


class SilentTrainer(PruningTrainer):
    """Computes its loss alone, and tells the pruner nothing."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        return model(**{name: value for name, value in inputs.items() if name != INDEX}).loss


def make(
    folder: Path,
    task: str = "classify",
    policy: Any = None,
    *,
    kind: Any = RecordingTrainer,
    seed: int = 0,
    dropout: float = 0.1,
    pruner: Any = None,
    given: dict[str, Any] | None = None,
    **changes: Any,
) -> Any:
    """A Trainer; `given` are its own arguments, `changes` those of its TrainingArguments."""
    train_set = dataset(task)
    settings = {
        "model": model(task, seed, dropout),
        "args": arguments(folder, **changes),
        "train_dataset": train_set,
        "data_collator": collator(task),
        "pruner": pruner or orderdp.Pruner(policy or orderdp.OrderDP(0.4), N, seed=5, shard=False),
        **(given or {}),
    }
    return kind(**settings)


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def result(trainer: Any) -> dict[str, Any]:
    trainer.pruner.sync()
    return {
        "weights": weights(trainer),
        "visited": trainer.visited,
        "scores": trainer.pruner.scores,
        "usage": trainer.pruner.usage,
        "kept": trainer.pruner.report()["kept"],
        "epoch": trainer.pruner.epoch,
        "max_steps": trainer.state.max_steps,
        "steps": trainer.state.global_step,
    }


def refusal(folder: Path, **options: Any) -> str:
    """What a training that must not start, or not go on, says."""
    try:
        make(folder, **options).train()
    except (ConfigError, FeedbackError) as error:
        return str(error)
    return "nothing was wrong"


class Selections(TrainerCallback):
    """Notes what the pruner has drawn, when each epoch's first step is over."""

    def __init__(self, pruner: orderdp.Pruner) -> None:
        self.pruner = pruner
        self.drawn: list[list[int]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step % (state.max_steps // EPOCHS) == 1:
            self.drawn.append(sorted(self.pruner.state_dict()["timeline"]["epoch"]["order"].tolist()))


def two_processes(folder: Path) -> dict[str, Any]:
    """Straight, and stopped in mid-epoch and gone on with; with what must be refused."""
    saving = {"save_strategy": "steps", "save_steps": 6, "gradient_accumulation_steps": 1}
    straight = make(folder / "straight", **saving)
    selections = Selections(straight.pruner)
    straight.add_callback(selections)
    straight.train()
    resumed = make(folder / "resumed", seed=1, **saving)
    resumed.train(resume_from_checkpoint=str(folder / "straight" / "checkpoint-6"))
    dropping = make(folder / "dropping", dataloader_drop_last=True, save_strategy="epoch")
    dropping.train()
    on_top = orderdp.Pruner(orderdp.OrderDP(0.4), N)
    return {
        "straight": result(straight),
        "selections": selections.drawn,
        "resumed": result(resumed),
        "dropping": result(dropping),
        "sharded": refusal(folder / "sharded", pruner=on_top),
        "uneven": refusal(folder / "uneven", accelerator_config={"even_batches": False}),
        "dispatched": refusal(folder / "dispatched", accelerator_config={"dispatch_batches": True}),
        "weighted": refusal(folder / "weighted", given={"model": model_with_own_loss()}),
        "silent": refusal(folder / "silent", kind=SilentTrainer),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    target = Path(sys.argv[1])
    torch.save(two_processes(target), target / f"rank{os.environ['RANK']}.pt")
    dist.destroy_process_group()
