"""Haiku: an LSTM by `dynamic_unroll`, followed by a readout."""

import haiku as hk
import jax

from benchmarks.programs._base import Program, normal

T, B, D, H = 64, 16, 128, 256


def _lstm():
    def unroll(xs):
        core = hk.LSTM(H)
        ys, _ = hk.dynamic_unroll(core, xs, core.initial_state(B))
        return hk.BatchApply(hk.Linear(D))(ys)

    xs = normal(T, B, D)
    model = hk.without_apply_rng(hk.transform(unroll))
    params = model.init(jax.random.key(0), xs)
    return Program(f"T={T} B={B} D={D} H={H}", params, xs, model.apply)


PROGRAMS = {"LSTM, Haiku": _lstm}
