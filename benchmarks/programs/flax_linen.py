"""Flax Linen: `RNN` over Flax's cells, batch-major as by default."""

import flax.linen as nn
import jax

from benchmarks.programs._base import Program, lengths, normal

B, T, D, H = 16, 64, 128, 256
SIZES = f"T={T} B={B} D={D} H={H}"


def _program(model, x, sizes=SIZES, **options):
    variables = model.init(jax.random.key(0), x, **options)
    return Program(
        sizes=sizes,
        params=variables,
        inputs=(x, options),
        apply=lambda params, inputs: model.apply(params, inputs[0], **inputs[1]),
    )


def _gru():
    return _program(nn.RNN(nn.GRUCell(H)), normal(B, T, D))


def _lengths():
    model = nn.RNN(nn.OptimizedLSTMCell(H))
    return _program(model, normal(B, T, D), seq_lengths=lengths(B, T))


def _bidirectional():
    directions = [nn.RNN(nn.OptimizedLSTMCell(H)) for _ in range(2)]
    return _program(nn.Bidirectional(*directions), normal(B, T, D))


def _convolutional():
    """A `ConvLSTM` over frames of 16 by 16 pixels."""
    model = nn.RNN(nn.ConvLSTMCell(features=16, kernel_size=(3, 3)))
    frames = normal(4, 16, 16, 16, 8)
    return _program(model, frames, sizes="T=16 B=4, 16x16 pixels, 8 to 16 channels")


PROGRAMS = {
    "GRU, Flax Linen": _gru,
    "LSTM with lengths, Flax Linen": _lengths,
    "bidirectional LSTM, Flax Linen": _bidirectional,
    "ConvLSTM, Flax Linen": _convolutional,
}
