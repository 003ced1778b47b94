"""The timm recipe with pruning: RandAugment, MixUp and CutMix, soft targets, EMA, mixed precision, a folder of images.

    pip install '.[vision]'
    python examples/timm_recipe.py /data/imagenet --model swin_tiny_patch4_window7_224 --epochs 300 --prune-ratio 0.3

The folder has train/CLASS/*.jpg and val/CLASS/*.jpg. Four lines are about pruning: they are marked.

The score of a sample is its loss by its own label on the blended image: the loss that is trained on belongs to the
blend, half of which may be another sample.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import timm
import torch
from timm.data import Mixup, create_transform, resolve_model_data_config
from timm.utils import ModelEmaV3
from torchvision.datasets import ImageFolder

import orderdp
from orderdp.integrations.timm import blended_losses

# timm's usual one ends in -inc1, which now and then asks Pillow to keep no bits of an image; Pillow 13 refuses.
RAND_AUGMENT = "rand-m9-mstd0.5"


def train(folder: Path, options: argparse.Namespace, steps: int | None = None) -> dict[str, float]:
    """Trains, or goes on from the checkpoint; `steps` ends it early, as a kill would."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    size = options.image_size or timm.get_pretrained_cfg(options.model).input_size[-1]
    kwargs = {"img_size": size} if timm.get_pretrained_cfg(options.model).fixed_input_size else {}
    train_set = ImageFolder(str(folder / "train"))
    model = timm.create_model(options.model, num_classes=len(train_set.classes), **kwargs).to(device)
    config = resolve_model_data_config(model)
    train_set.transform = create_transform(
        (3, size, size), is_training=True, auto_augment=RAND_AUGMENT, mean=config["mean"], std=config["std"]
    )
    blend = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=len(train_set.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    ema = ModelEmaV3(model, decay=0.9998)

    policy = orderdp.OrderDP(prune_ratio=options.prune_ratio)
    pruner = orderdp.Pruner(policy, len(train_set), seed=0, epochs=options.epochs)  # pruning
    total = pruner.steps(options.epochs, options.batch_size, drop_last=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=total)
    parts = {"model": model, "ema": ema, "optimizer": optimizer, "schedule": schedule, "pruner": pruner}
    if options.checkpoint.exists():
        state = orderdp.load_checkpoint(options.checkpoint)
        for name, part in parts.items():
            part.load_state_dict(state[name])

    loader = pruner.loader(  # pruning
        train_set, batch_size=options.batch_size, drop_last=True, num_workers=options.workers
    )
    done = 0
    for _ in range(pruner.epoch, options.epochs):
        for index, (images, labels) in loader:  # pruning
            images, labels = images.to(device), labels.to(device)
            blended, targets = blend(images, labels)
            # On a processor it would be slower. Half precision of the other kind, float16, would need a GradScaler.
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(blended)
            losses, scores = blended_losses(logits.float(), targets, labels)
            loss = pruner.update(index, losses, scores)  # pruning
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            ema.update(model)
            done += 1
            if done == steps:
                break
        orderdp.save_checkpoint(options.checkpoint, {name: part.state_dict() for name, part in parts.items()})
        if done == steps:
            break
    return {"steps": done, "loss": loss.item(), **pruner.report()}


def read_options(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--image-size", type=int, help="for models that take another than their own")
    parser.add_argument("--epochs", type=int, default=300)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--prune-ratio", type=float, default=0.3)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--checkpoint", type=Path, default=Path("timm_recipe.pt"))
    return parser.parse_args(arguments)


if __name__ == "__main__":
    chosen = read_options()
    print(train(chosen.folder, chosen))
