"""Cells that are linear in their carry: initial parameters, and errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scanrnn
from scanrnn import cells
from tests.cell_table import CELLS, draw


def init(cell, in_features, hidden_features, **options):
    return cell.init(jax.random.key(3), in_features, hidden_features, **options)


def test_eigenvalues_of_an_lru_start_in_their_ring():
    cell = cells.lru(projection=1, r_min=0.5, r_max=0.9, max_phase=0.3)
    params = init(cell, 3, 2000)
    radius, phase = np.exp(-np.exp(params["nu"])), np.exp(params["theta"])
    assert 0.5 <= radius.min() and radius.max() <= 0.9
    assert abs(np.mean(radius**2) - (0.5**2 + 0.9**2) / 2) < 0.01  # uniform by area
    assert 0 < phase.min() and phase.max() <= 0.3
    assert abs(phase.mean() - 0.15) < 0.01
    gamma = np.exp(params["gamma"])
    np.testing.assert_allclose(gamma, np.sqrt(1 - radius**2), rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_lru_starts_finite_up_to_the_unit_circle(dtype):
    params = init(cells.lru(projection=1), 3, 5000, dtype=dtype)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in params.values())


def test_matrices_of_an_lru_have_the_variances_of_its_paper():
    params = init(cells.lru(projection=300), 100, 200)
    assert abs(np.var(params["kernel"]) * 2 * 100 - 1) < 0.05
    assert abs(np.var(params["readout"]) * 200 - 1) < 0.05
    ones = jax.nn.initializers.ones
    assert (init(cells.lru(), 3, 5, kernel_init=ones)["kernel"] == 1).all()
    flax = init(cells.lru(), 100, 200, scheme="flax")["kernel"]
    assert abs(np.var(flax) * 100 - 1) < 0.05


def test_an_lru_is_a_sum_of_powers():
    """The values equal equation 4 of the paper, unrolled, with complex numbers."""
    params, xs, carry = draw(CELLS["lru"])
    lam = np.exp(-np.exp(params["nu"]) + 1j * np.exp(params["theta"]))
    b, c = (np.split(params[k], 2, axis) for k, axis in (("kernel", 1), ("readout", 0)))
    bx = np.exp(params["gamma"]) * (xs @ (b[0] + 1j * b[1]))
    first = carry.re + 1j * carry.im
    h = lam ** len(xs) * first
    h = h + sum(lam ** (len(xs) - 1 - t) * bx[t] for t in range(len(xs)))
    want = np.real(h @ (c[0] + 1j * c[1])) + xs[-1] @ params["skip"]
    cell = CELLS["lru"].cell
    _, ys = scanrnn.scan(lambda *a: cell.step(params, *a), carry, xs)
    np.testing.assert_allclose(ys[-1], want, rtol=1e-10, atol=1e-12)


def test_an_rglru_starts_by_keeping_most():
    decay = init(cells.rglru(), 2000, 2000)["decay"]
    kept = np.exp(-8 * jax.nn.softplus(decay))
    assert 0.9 <= kept.min() < 0.902 and 0.997 < kept.max() <= 0.9991


@pytest.mark.parametrize("shift", [-5.0, -30.0, -80.0, -1e4])
def test_gradients_of_an_rglru_stay_exact_as_it_keeps_all(shift):
    """The gradients go to 0 like the square root of r."""
    cell = cells.rglru()
    params = jax.tree.map(jnp.float32, init(cell, 1, 1))
    x = jnp.float32([2.0])
    zeros = cell.initial_carry(params, x)

    def h(shift):
        bias = jnp.stack([shift, jnp.float32(0.0)])
        kernel = jnp.zeros_like(params["kernel"])
        return cell.step(params | {"bias": bias, "kernel": kernel}, zeros, x)[1][0]

    slope = jax.grad(h)(jnp.float32(shift))
    rate = 16 * np.log1p(np.exp(np.float64(params["decay"][0])))
    r = 1 / (1 + np.exp(np.float64(-shift))) if shift > -700 else 0.0
    root = np.sqrt(-np.expm1(-rate * r))
    want = np.exp(-rate * r) * rate * r * (1 - r) / (2 * root) if root else 0.0
    np.testing.assert_allclose(slope, want, rtol=1e-4, atol=1e-30)


@pytest.mark.parametrize("name, gate", [("mingru", "z"), ("minlstm", "f")])
def test_chrono_makes_minimal_cells_keep(name, gate):
    make = getattr(cells, name)
    params = init(make(), 3, 5, scheme=cells.chrono(longest=100))
    if gate == "z":
        z, rest = np.split(params["bias"], 2)
        assert (z < 0).all()
    else:
        f, i, rest = np.split(params["bias"], 3)
        assert (f > 0).all() and (i == -f).all()
    assert not rest.any()


def test_forget_bias_of_a_minlstm():
    for given, want in ((None, 1.0), (3, 3.0)):
        f, i, h = np.split(init(cells.minlstm(forget_bias=given), 3, 5)["bias"], 3)
        assert (f == want).all() and not i.any() and not h.any()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: cells.mingru(candidate="tanh"), "candidate='tanh'.*'linear'"),
        (lambda: cells.lru(skip="none"), "lru: skip='none'.*'matrix'"),
        (lambda: cells.lru(r_min=0.9, r_max=0.5), "r_min=0.9, r_max=0.5.*ring"),
        (lambda: cells.lru(r_max=1.1), "r_max=1.1.*stable"),
        (lambda: cells.lru(max_phase=0), "max_phase=0.0.*more than 0"),
        (lambda: init(cells.lru(skip="diagonal"), 3, 5), "in_features=3.*projection=3"),
        (lambda: init(cells.rglru(), 3, 5), "in_features=3.*hidden_features=5.*equal"),
        (lambda: init(cells.rglru(heads=2), 5, 5), "hidden_features=5.*heads=2"),
    ],
)
def test_what_linear_cells_refuse(make, message):
    with pytest.raises(ValueError, match=message):
        make()
