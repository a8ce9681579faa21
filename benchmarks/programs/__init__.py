"""Programs as other people write them, which `scanrnn.accelerate` gets.

A program is absent if its library is not installed. Every cell of ours is such a
program, too: its step under `jax.lax.scan`.
"""

import importlib

from benchmarks.contenders import Absent
from benchmarks.programs import cells
from benchmarks.programs._base import Program

# The contenders that run each program.
ORIGINAL, OURS, LAYER = "as it is", "accelerated", "with our layer"

# Programs with a state that is larger than their outputs, or that spend their time
# outside of products: a plan must not be slower, and must not take more memory.
NOT_WORSE = (
    "selective scan (Mamba)",
    "RWKV's state",
    "chunks of a gated delta rule",
    "recurrent state space with resets (Dreamer)",
    "attention decoder",
    "Kalman filter",
    "hidden Markov model",
    "advantage estimation",
    "layers of a transformer",
)

# Programs whose loop runs as several.
STACKED = ("two LSTMs in one step",)

# Programs that are also written with a layer of ours.
WITH_LAYER = ("actor and critic with resets, Flax Linen",)

# Programs whose loops are affine in their carry, forward and in reverse.
AFFINE = (
    "advantage estimation",
    "advantage estimation (Brax)",
    "lambda-returns",
    "V-trace",
    "Kalman filter with a fixed gain",
    "averages of an optimiser",
)

# The file that holds each program. A file is imported only when it is asked for.
FILES = {
    "GRU, Flax Linen": "flax_linen",
    "LSTM with lengths, Flax Linen": "flax_linen",
    "bidirectional LSTM, Flax Linen": "flax_linen",
    "ConvLSTM, Flax Linen": "flax_linen",
    "actor and critic with resets, Flax Linen": "actor_critic",
    "GRU, Flax NNX": "flax_nnx",
    "LSTM, Haiku": "haiku",
    "LSTM with a mask, Keras": "keras",
    "LSTM with variational dropout": "plain",
    "LSTM under jax.checkpoint": "plain",
    "LSTM with 4 heads": "plain",
    "two LSTMs in one step": "plain",
    "layers of a transformer": "transformer",
    "selective scan (Mamba)": "state_space",
    "RWKV's state": "linear_attention",
    "chunks of a gated delta rule": "linear_attention",
    "recurrent state space with resets (Dreamer)": "world_model",
    "attention decoder": "attention_decoder",
    "Kalman filter": "filters",
    "hidden Markov model": "filters",
    "advantage estimation": "advantages",
    "advantage estimation (Brax)": "advantages",
    "lambda-returns": "advantages",
    "V-trace": "advantages",
    "Kalman filter with a fixed gain": "filters",
    "averages of an optimiser": "filters",
    **dict.fromkeys(cells.PROGRAMS, "cells"),
}


def find(name: str) -> Program:
    """A program by name.

    Raises:
      Absent: if its library is not installed.
    """
    try:
        module = importlib.import_module(f"benchmarks.programs.{FILES[name]}")
    except ModuleNotFoundError as error:
        raise Absent(f"{error.name} is not installed") from error
    return module.PROGRAMS[name]()
