"""Recipes: named sets of options, which the command line can override."""

from typing import Any

# As published: Zaremba, Sutskever, Vinyals, "Recurrent neural network regularization",
# 2014, arXiv:1409.2329.
_PTB: dict[str, Any] = {
    "tokens": "words",
    "cell": "lstm",
    "norm": "none",
    "residual": False,
    "layers": 2,
    "batch": 20,
    "vocabulary": 10_000,
    "optimizer": "sgd",
    "learning_rate": 1.0,
    "loss": "sum",
    "precision": "float32",
    "keep": 1.0,
    "sample": 100,
}

RECIPES: dict[str, dict[str, Any]] = {
    "demo": {},
    "ptb-small": _PTB
    | {
        "out": "runs/ptb-small",
        "epochs": 13,
        "features": 200,
        "window": 20,
        "uniform": 0.1,
        "clip": 5.0,
        "decay": 0.5,
        "decay_after": 4,
    },
    "ptb-medium": _PTB
    | {
        "out": "runs/ptb-medium",
        "epochs": 39,
        "features": 650,
        "window": 35,
        "uniform": 0.05,
        "keep": 0.5,
        "clip": 5.0,
        "decay": 1 / 1.2,
        "decay_after": 6,
    },
    "ptb-large": _PTB
    | {
        "out": "runs/ptb-large",
        "epochs": 55,
        "features": 1500,
        "window": 35,
        "uniform": 0.04,
        "keep": 0.35,
        "clip": 10.0,
        "decay": 1 / 1.15,
        "decay_after": 14,
    },
}
