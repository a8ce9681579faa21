"""Training on many devices: the mesh, and how state and batches are put on it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from scanrnn.training._step import TrainState

# The axes of every mesh here. Devices along "data" share the batch, those along "gates"
# share the gates of each layer.
DATA, GATES = "data", "gates"
# Weights of recurrent layers that have all gates side by side on the last axis.
_GATED = ("kernel", "recurrent_kernel", "bias", "norm_x", "norm_h")


def make_mesh(devices: int = 0, tensor: int = 1) -> Mesh:
    """Makes the mesh of a run.

    Args:
        devices: How many devices; 0 for all there are, in all processes.
        tensor: How many of them share the gates of a layer; the rest share the batch.

    Returns:
        A mesh with the axes "data" and "gates".

    Raises:
        ValueError: If there are fewer devices than `devices`, or `tensor` does not
            divide their number.

    Example:
        >>> from scanrnn.training import make_mesh
        >>> dict(make_mesh(1).shape)
        {'data': 1, 'gates': 1}
    """
    count = devices or jax.device_count()
    if count > jax.device_count():
        raise ValueError(
            f"devices: got {count}, but there are {jax.device_count()}; on a CPU, "
            "XLA_FLAGS=--xla_force_host_platform_device_count=N makes JAX show the CPU "
            "as N devices"
        )
    if count % tensor:
        raise ValueError(f"tensor: got {tensor}, want a divisor of {count} devices")
    return jax.make_mesh(
        (count // tensor, tensor),
        (DATA, GATES),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=jax.devices()[:count],
    )


def mesh_of_run(devices: int, tensor: int) -> Mesh | None:
    """Makes the mesh of a run of this process, or of all processes that take part.

    Args:
        devices: How many devices; 0 for all. Several processes always take all.
        tensor: How many of them share the gates of a layer.

    Returns:
        The mesh; None for one device.

    Raises:
        ValueError: As `make_mesh` does; or if several processes are to take a number of
            devices.
    """
    if jax.process_count() == 1:
        return None if (devices, tensor) == (1, 1) else make_mesh(devices, tensor)
    if devices > 1:
        raise ValueError(
            f"devices: got {devices}, but a run of several processes takes all their "
            "devices; leave out --devices"
        )
    return make_mesh(0, tensor)


def rows_of_process(mesh: Mesh, batch: int, accumulate: int = 1) -> tuple[int, int]:
    """Returns the range of examples of a batch that this process has to read.

    Args:
        mesh: The mesh.
        batch: Examples per step on the whole mesh.
        accumulate: Number of parts of a batch, as in `make_train_step`.

    Returns:
        The index of the first example, and one more than that of the last.

    Raises:
        ValueError: If `batch`, or a part of it, is not a multiple of the number of
            devices that share it.

    Example:
        >>> from scanrnn.training import make_mesh, rows_of_process
        >>> rows_of_process(make_mesh(1), 8)
        (0, 8)
    """
    if batch % (accumulate * mesh.shape[DATA]):
        parts = f" in each of {accumulate} parts" if accumulate > 1 else ""
        raise ValueError(
            f"batch: got {batch}, want a multiple of the {mesh.shape[DATA]} devices "
            f"that share it{parts}"
        )
    sharding = NamedSharding(mesh, P(DATA))
    indices = sharding.addressable_devices_indices_map((batch,)).values()
    bounds = [index[0].indices(batch) for index in indices if index is not None]
    return min(start for start, *_ in bounds), max(stop for _, stop, _ in bounds)


def shard_batch(batch: Any, mesh: Mesh) -> Any:
    """Puts a batch on the mesh, so that each device has its examples.

    Args:
        batch: A pytree of arrays with examples on their last axis, such as `[T, B]`.
            With several processes, each passes the examples of its `rows_of_process`.
        mesh: The mesh.

    Returns:
        The arrays of the whole batch.

    Example:
        >>> import numpy as np
        >>> from scanrnn.training import make_mesh, shard_batch
        >>> shard_batch(np.zeros([5, 2]), make_mesh(1)).shape
        (5, 2)
    """

    def place(leaf):
        axes = (None,) * (np.ndim(leaf) - 1)
        sharding = NamedSharding(mesh, P(*axes, DATA))
        return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))

    return jax.tree.map(place, batch)


def shard_state(state: TrainState, mesh: Mesh, accumulate: int = 1) -> TrainState:
    """Puts a state on the mesh.

    Every device gets its examples of the carry, and a copy of the parameters and of the
    optimizer's state. Numbers in the carry, without an axis of examples, are copied. If
    the "gates" axis has more than one device, the weights of recurrent layers are cut
    along their last axis instead, and each device along "gates" gets its columns.
    Weights that this number of devices does not divide are copied.

    Args:
        state: The state, the same in every process.
        mesh: The mesh.
        accumulate: Number of parts of a batch, as in `make_train_step`.

    Returns:
        The state on the mesh.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> from scanrnn.training import init_state, make_mesh, shard_state
        >>> key = jax.random.key(0)
        >>> state = init_state({"w": jnp.ones(1)}, optax.sgd(1.0), key=key)
        >>> shard_state(state, make_mesh(1)).params["w"].sharding.is_fully_replicated
        True
    """
    axis = 0 if accumulate == 1 else 1

    def spec_of(path, leaf):
        if getattr(path[0], "name", None) == "carry":
            # A number is of no example: a running mean, say.
            return P(*(None,) * axis, DATA) if leaf.ndim > axis else P()
        names = {str(getattr(k, "key", getattr(k, "name", ""))) for k in path}
        gated = "layers" in names and not names.isdisjoint(_GATED)
        if gated and leaf.ndim and leaf.shape[-1] % mesh.shape[GATES] == 0:
            if mesh.shape[GATES] > 1:
                return P(*(None,) * (leaf.ndim - 1), GATES)
        return P()

    def sharding(path, leaf):
        return NamedSharding(mesh, spec_of(path, leaf))

    shardings = jax.tree_util.tree_map_with_path(sharding, state)
    # A compiled program accepts PRNG keys, and devices of other processes.
    return jax.jit(lambda state: state, out_shardings=shardings)(_on_host(state))


def _on_host(tree):
    """Copies arrays to the host. A program takes them as equal in every process."""

    def fetch(leaf):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return leaf
        return np.asarray(leaf)

    return jax.tree.map(fetch, tree)
