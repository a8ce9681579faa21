"""Compare the plain cells with PyTorch on the CPU: values and gradients, in float64."""

import functools

import jax
import numpy as np
import pytest

import scanrnn
from scanrnn.interop import Weights, to_torch
from tests.cell_table import CELLS, H, draw

torch = pytest.importorskip("torch")

LAYERS = {  # our row: torch's layer
    "elman": functools.partial(torch.nn.RNN, nonlinearity="tanh"),
    "elman_relu": functools.partial(torch.nn.RNN, nonlinearity="relu"),
    "lstm": torch.nn.LSTM,
    "gru": torch.nn.GRU,
    "lstm-projection": functools.partial(torch.nn.LSTM, proj_size=2),
}


def our_gradients(layer):
    """The gradients of a torch layer, by our names."""
    gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
    ours = {
        "kernel": gradients["weight_ih_l0"].T,
        "recurrent_kernel": gradients["weight_hh_l0"].T,
        "bias": gradients["bias_ih_l0"],
    }
    if isinstance(layer, torch.nn.GRU):
        ours["recurrent_bias"] = gradients["bias_hh_l0"][2 * H :]
    if "weight_hr_l0" in gradients:
        ours["projection"] = gradients["weight_hr_l0"].T
    return ours


def run_torch(name, params, xs, carry, weights):
    """Outputs, last carry, and the gradients of the sum of outputs times `weights`."""
    layer = LAYERS[name](xs.shape[-1], H, dtype=torch.float64)
    state_dict = to_torch(Weights(CELLS[name].cell, [[params]]))
    layer.load_state_dict({k: torch.tensor(v) for k, v in state_dict.items()})
    leaf = functools.partial(torch.tensor, requires_grad=True)
    xs, first = leaf(xs), [leaf(field[None]) for field in carry]
    ys, last = layer(xs, tuple(first) if len(first) > 1 else first[0])
    last = last if len(first) > 1 else (last,)
    results = [ys, *(field[0] for field in last)]
    _backward(results, weights)
    gradients = (our_gradients(layer), xs.grad, [field.grad[0] for field in first])
    return [a.detach().numpy() for a in results], gradients


def run_fastrnns(params, xs, carry, weights):
    """The equations of LayerNormLSTMCell in PyTorch's benchmarks/fastrnns."""
    leaf = functools.partial(torch.tensor, requires_grad=True)
    p = {name: leaf(value) for name, value in params.items()}
    xs, first = leaf(xs), [leaf(field) for field in carry]
    h, c = first

    def norm(a, name):
        return torch.nn.functional.layer_norm(
            a, a.shape[-1:], p[f"norm_{name}"], p[f"norm_{name}_bias"]
        )

    ys = []
    for x in xs:
        z = norm(x @ p["kernel"], "x") + norm(h @ p["recurrent_kernel"], "h")
        i, f, g, o = z.chunk(4, -1)
        c = norm(f.sigmoid() * c + i.sigmoid() * g.tanh(), "c")
        h = o.sigmoid() * c.tanh()
        ys.append(h)
    results = [torch.stack(ys), h, c]
    _backward(results, weights)
    gradients = {name: a.grad.numpy() for name, a in p.items()}
    gradients = gradients, xs.grad, [field.grad for field in first]
    return [a.detach().numpy() for a in results], gradients


def _backward(results, weights):
    scores = (
        (torch.tensor(w) * a).sum() for w, a in zip(weights, results, strict=True)
    )
    sum(scores).backward()


RUNS = {name: functools.partial(run_torch, name) for name in LAYERS}
RUNS["lstm-fastrnns"] = run_fastrnns


@pytest.mark.parametrize("name", RUNS)
def test_cell_equals_torch_in_values_and_gradients(name):
    row = CELLS[name]
    params, xs, carry = draw(row)
    generator = np.random.default_rng(1)
    weights = [generator.normal(size=(len(xs), *carry.h.shape))]
    weights += [generator.normal(size=field.shape) for field in carry]
    wanted, wanted_gradients = RUNS[name](params, xs, carry, weights)

    def score(params, xs, carry):
        last, ys = scanrnn.scan(functools.partial(row.cell.step, params), carry, xs)
        results = [ys, *last]
        return sum(
            (w * a).sum() for w, a in zip(weights, results, strict=True)
        ), results

    grad = jax.grad(score, argnums=(0, 1, 2), has_aux=True)
    gradients, results = jax.jit(grad)(params, xs, carry)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-11, atol=1e-11)
    jax.tree.map(close, results, wanted)
    jax.tree.map(close, gradients[0], wanted_gradients[0])
    close(gradients[1], wanted_gradients[1])
    jax.tree.map(close, list(gradients[2]), wanted_gradients[2])
