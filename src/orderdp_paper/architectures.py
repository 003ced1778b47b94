"""The paper's tables on other models: tests of its claim of no loss at the ratios that it prints."""

from __future__ import annotations

from typing import Any

from orderdp_paper import printed as paper_numbers
from orderdp_paper.recipes import (
    CARD,
    CORES,
    CPU_MEMORY,
    IMAGENET_HOURS,
    IMAGENET_MEMORY,
    SMOKE_MEMORY,
    cifar,
    cpu,
    imagenet,
    printed_part,
    smoke,
)
from orderdp_paper.suite import Scale, Suite
from orderdp_paper.tables import lossless_tables

__all__ = ["SUITES"]


# -- architectures --------------------------------------------------------------------------------------------------

_ARCHITECTURES = paper_numbers.ARCHITECTURES


_CIFAR_TIMES = {"resnet18": 2400.0, "resnet50": 6000.0}


_TABLE_ARCHITECTURES = Suite(
    "table-architectures",
    "no loss at the paper's largest lossless ratios, on other models and data",
    _ARCHITECTURES,
    {
        "smoke": Scale(
            (
                printed_part(_ARCHITECTURES, "CIFAR-10, ResNet-18", smoke(), 1, 0.2),
                printed_part(_ARCHITECTURES, "CIFAR-10, ResNet-50", smoke(model="cnn", width=4), 1, 1.0),
            ),
            CORES,
            SMOKE_MEMORY,
            "Digits, with a plain network for ResNet-18 and a small residual one for ResNet-50.",
        ),
        "cpu": Scale(
            (
                printed_part(_ARCHITECTURES, "CIFAR-10, ResNet-18", cpu(), 5, 110.0),
                printed_part(_ARCHITECTURES, "CIFAR-10, ResNet-50", cpu(width=16), 5, 220.0),
            ),
            CORES,
            CPU_MEMORY,
            "Fashion-MNIST with a network of nine layers, of width 8 for ResNet-18 and 16 for ResNet-50. "
            "The ratios are the paper's for CIFAR-10; `orderdp compare --find-lossless` searches others.",
        ),
        "paper": Scale(
            (
                *(
                    printed_part(
                        _ARCHITECTURES,
                        f"{name}, ResNet-{model[6:]}",
                        cifar(model, data),
                        3,
                        _CIFAR_TIMES[model],
                        controls=False,
                    )
                    for name, data in (("CIFAR-10", "cifar10"), ("CIFAR-100", "cifar100"))
                    for model in ("resnet18", "resnet50")
                ),
                *(
                    printed_part(
                        _ARCHITECTURES,
                        f"ImageNet-1K, ResNet-{model[6:]}",
                        imagenet(model),
                        3,
                        IMAGENET_HOURS[model] * 3600,
                        controls=False,
                    )
                    for model in ("resnet18", "resnet50")
                ),
            ),
            CARD,
            IMAGENET_MEMORY,
            "The ratios are the paper's; they are tried, not searched for.",
        ),
    },
    lossless_tables,
    "gaps",
)


# -- transformers ---------------------------------------------------------------------------------------------------

_ADAMW: dict[str, Any] = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05}


_MIXED: dict[str, Any] = {"mixup": 0.8, "cutmix": 1.0, "label_smoothing": 0.1}


_TIMM_IMAGENET = {"data": "imagenet", "amp": True, "channels_last": True, "schedule": "onecycle"}


_TABLE_VIT = Suite(
    "table-vit",
    "timm's recipe and vision transformers",
    paper_numbers.VIT,
    {
        "smoke": Scale(
            (
                printed_part(paper_numbers.VIT, "R-50 (timm)", smoke(mixup=0.1, cutmix=1.0), 1, 0.2),
                printed_part(
                    paper_numbers.VIT,
                    "Swin-T",
                    smoke(model="vit", width=16, batch_size=64, **{**_ADAMW, "lr": 1e-2}),
                    1,
                    1.0,
                ),
            ),
            CORES,
            SMOKE_MEMORY,
            "Digits, with a plain network and a small transformer.",
        ),
        "cpu": Scale(
            (
                printed_part(
                    paper_numbers.VIT, "R-50 (timm)", cpu(mixup=0.1, cutmix=1.0, label_smoothing=0.1), 3, 115.0
                ),
                printed_part(
                    paper_numbers.VIT, "Swin-T", cpu(model="vit", width=48, **{**_ADAMW, "lr": 2e-3}), 3, 290.0
                ),
                printed_part(
                    paper_numbers.VIT, "ViT-B (MAE)", cpu(model="vit", width=64, **{**_ADAMW, "lr": 2e-3}), 3, 360.0
                ),
            ),
            CORES,
            CPU_MEMORY,
            "Fashion-MNIST. A network of nine layers with MixUp and CutMix for timm's ResNet-50, a transformer of four "
            "layers (width 48 and 64, from scratch) for Swin-T and ViT-B.",
        ),
        "paper": Scale(
            (
                printed_part(
                    paper_numbers.VIT,
                    "R-50 (timm)",
                    {
                        **_TIMM_IMAGENET,
                        "model": "timm:resnet50",
                        "epochs": 100,
                        "batch_size": 1024,
                        "optimizer": "lamb",
                        "lr": 5e-3,
                        "weight_decay": 0.02,
                        "mixup": 0.1,
                        "cutmix": 1.0,
                    },
                    1,
                    80 * 3600.0,
                    controls=False,
                ),
                *(
                    printed_part(
                        paper_numbers.VIT,
                        group,
                        {**_TIMM_IMAGENET, "model": model, "epochs": 300, "batch_size": 1024, **_ADAMW, **_MIXED},
                        1,
                        hours * 3600.0,
                        controls=False,
                    )
                    for group, model, hours in (
                        ("Swin-T", "timm:swin_tiny_patch4_window7_224", 300),
                        ("ViT-B (MAE)", "timm:vit_base_patch16_224", 600),
                    )
                ),
            ),
            CARD,
            IMAGENET_MEMORY,
            "Needs timm. The paper names timm's recipes without their settings: these are usual ones. ViT-B is trained "
            "from scratch for 300 epochs, not pretrained as a masked autoencoder, which is another task "
            "(examples/masked_autoencoder.py).",
        ),
    },
    lossless_tables,
    "gaps",
)


SUITES = (_TABLE_ARCHITECTURES, _TABLE_VIT)
