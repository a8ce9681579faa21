"""Haiku: one LSTM and a stack of two by `dynamic_unroll`, followed by a readout."""

import haiku as hk
import jax

from benchmarks.programs._base import Program, normal

T, B, D, H = 64, 16, 128, 256


def _program(make_core):
    def unroll(xs):
        core = make_core()
        ys, _ = hk.dynamic_unroll(core, xs, core.initial_state(B))
        return hk.BatchApply(hk.Linear(D))(ys)

    xs = normal(T, B, D)
    model = hk.without_apply_rng(hk.transform(unroll))
    params = model.init(jax.random.key(0), xs)
    return Program(f"T={T} B={B} D={D} H={H}", params, xs, model.apply)


def _lstm():
    return _program(lambda: hk.LSTM(H))


def _stack():
    """All layers in one step, and the first layer's inputs for the second one, too."""
    layers = hk.deep_rnn_with_skip_connections
    return _program(lambda: layers([hk.LSTM(H), hk.LSTM(H)]))


PROGRAMS = {"LSTM, Haiku": _lstm, "two LSTMs in one step, Haiku": _stack}
