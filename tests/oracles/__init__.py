"""Recurrent cells in NumPy, written from their papers: what `scanrnn.cells` must equal.

They loop over time, examples and gates, share no code with the package, and work on
complex numbers as well, so that a complex step gives their derivatives to the last bit.
A cell is a function of params, a carry (a tuple of arrays of one example) and an x.
"""

import numpy as np


def run(step, params, xs, carry):
    """Go over `xs` `[T, B, ..., D]`, example by example.

    Returns:
        The last carry, a tuple of `[B, ..., H]`, and the outputs `[T, B, ..., H]`.
    """
    carries, outputs = [], []
    for example in range(xs.shape[1]):
        state, ys = tuple(field[example] for field in carry), []
        for x in xs[:, example]:
            state, y = step(params, state, x)
            ys.append(y)
        carries.append(state)
        outputs.append(ys)
    last = tuple(np.stack(field) for field in zip(*carries, strict=True))
    return last, np.stack(outputs, axis=1)


def gradient(function, tree):
    """The derivative of a scalar function of a dict of arrays, by complex steps.

    It is exact to rounding: there is no difference to cancel.
    """
    step = 1e-30
    gradients = {}
    for name, value in tree.items():
        gradients[name] = np.zeros(value.shape)
        for index in np.ndindex(value.shape):
            nudged = value.astype(complex)
            nudged[index] += 1j * step
            slope = np.imag(function({**tree, name: nudged})) / step
            gradients[name][index] = slope
    return gradients
