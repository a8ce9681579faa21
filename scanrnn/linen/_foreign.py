"""Run Flax's own Linen cells in our layer, also those with other state than weights.

A cell is called as a pure function of its variables, so that `scanrnn.scan` can run it.
"""

import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from flax.core.scope import in_filter

from scanrnn import layers
from scanrnn.linen._cell import Step
from scanrnn.linen._flax_cells import FlaxCell

_OPTIONS = (
    *("features", "num_layers", "bidirectional", "residual", "highway", "dropout"),
    *("param_dtype", "carry_dtype", "scheme", "kernel_init", "recurrent_kernel_init"),
    *("bias_init", "wavefront"),
)


def check(module: Any) -> None:
    """Raise ValueError if a layer was given options that its cell has already."""
    given = {name: getattr(module, name) for name in _OPTIONS}
    layers.check_foreign(module.cell, given)


def run(
    module: Any,
    inputs: jax.Array,
    call: layers.Call,
    deterministic: bool | None,
    init_key: Any,
) -> Any:
    """Run a layer of a Linen cell, and return what its call returns.

    Args:
        module: the layer.
        inputs: the inputs of the call.
        call: the other arguments of the call.
        deterministic: whether a cell of ours draws no noise.
        init_key: PRNG key for the first carry; None for the same one at every call.
    """
    cell = module.cell
    check(module)
    spec = layers.Spec(unroll=module.unroll, implementation=module.implementation)
    takes = inspect.signature(type(cell).__call__).parameters
    ours = isinstance(cell, Step | FlaxCell) and "deterministic" in takes
    options = {"deterministic": deterministic} if ours else {}

    def run_cells(xs, spans):
        key = jax.random.key(0) if init_key is None else init_key
        first, fresh = layers.first_carries(
            cell,
            call.initial_carry,
            xs,
            spans,
            lambda x: cell.initialize_carry(key, x.shape),
        )
        if _makes_variables(module, cell):
            cell(first, jnp.sum(xs, axis=0))  # makes the variables
        variables = _Variables(module, cell, xs.shape[0])

        def step(state, carry, inputs):
            x, row = inputs
            (carry, y), new = variables.apply(state, row, carry, x, **options)
            rows = {k: v for k, v in new.items() if k in variables.stacked}
            return {k: new[k] for k in state}, carry, (y, rows)

        state, out = layers.run_foreign(
            spec,
            step,
            variables.carried,
            first,
            fresh,
            (xs, variables.rows),
            spans,
            call,
        )
        ys, rows = out.ys
        if not module.is_initializing():
            variables.keep(state | rows)
        return out._replace(ys=ys)

    return layers.call_layers(
        spec,
        inputs,
        call,
        run_cells,
        in_features=None,
        feature_axes=cell.num_feature_axes,
        dtype=None,
    )


def _makes_variables(module, cell) -> bool:
    missing = not cell.variables.get("params")
    made_here = missing and module.is_mutable_collection("params")
    return module.is_initializing() or made_here


class _Variables:
    """The collections of a cell: carried, the same in all steps, or stacked."""

    def __init__(self, module, cell, length):
        self._cell, self._module = cell, module
        self._pure = cell.clone(parent=None)
        found = dict(cell.variables)
        self.carried = {
            name: value
            for name, value in found.items()
            if in_filter(module.variable_carry, name)
        }
        self._fixed = {
            name: value
            for name, value in found.items()
            if in_filter(module.variable_broadcast, name) and name not in self.carried
        }
        # Collections that a step writes to, as `sow` does, are stacked over time.
        self.stacked = {
            name: axis
            for name, axis in module.variable_axes.items()
            if module.is_mutable_collection(name)
        }
        self._mutable = [
            *(name for name in self.carried if module.is_mutable_collection(name)),
            *self.stacked,
        ]
        if module.is_initializing():
            # `tabulate` initializes each module again, in the scope of its call.
            self._mutable += ["params"]
        self._keys, self.rows = {}, {}
        for names, split in module.split_rngs.items():
            for name in module.scope.rngs:
                if in_filter(names, name):
                    key = module.make_rng(name)
                    if split:
                        self.rows[name] = jax.random.split(key, length)
                    else:
                        self._keys[name] = key

    def apply(self, state, row, *args, **options):
        """Make a step of the cell; return the result and the collections after it."""
        variables = {**self._fixed, **state}
        rngs = {**self._keys, **row}
        out, new = self._pure.apply(
            variables, *args, rngs=rngs, mutable=self._mutable, **options
        )
        return out, {**state, **new}

    def keep(self, new):
        """Write the collections after the loop to the cell."""
        for collection, values in new.items():
            if not self._module.is_mutable_collection(collection):
                continue
            if collection in self.stacked:
                move = functools.partial(
                    jnp.moveaxis, source=0, destination=self.stacked[collection]
                )
                values = jax.tree.map(move, values)
            for name, value in values.items():
                self._cell.put_variable(collection, name, value)
