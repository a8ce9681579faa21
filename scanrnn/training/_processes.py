"""One run by several processes, over JAX's own runtime."""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

# Seconds without a heartbeat after which the others take a process for dead.
_SILENCE = 20


def join_processes(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Joins the other processes of a run. Call it before any other use of JAX.

    All arguments may be left out where JAX detects the cluster: Slurm or a TPU pod.

    Args:
        coordinator: Address and port of process 0, such as "10.0.0.1:8476".
        num_processes: Number of processes.
        process_id: Number of this process, from 0.

    Raises:
        ValueError: If only some of the three are given.

    Example:
        >>> from scanrnn.training import join_processes
        >>> join_processes(num_processes=2)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: coordinator: got None; give coordinator, num_processes and ...
    """
    given = {
        "coordinator": coordinator,
        "num_processes": num_processes,
        "process_id": process_id,
    }
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < len(given):
        raise ValueError(
            f"{missing[0]}: got None; give coordinator, num_processes and process_id "
            "(options of the command, too), or none of them"
        )
    jax.distributed.initialize(
        coordinator_address=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        heartbeat_timeout_seconds=_SILENCE,
    )


def largest(number: int) -> int:
    """Returns the largest number of all processes. All of them must call it.

    Args:
        number: The number of this process. It must fit into int32.

    Returns:
        The largest number that any process gave.

    Example:
        >>> largest(15)
        15
    """
    if jax.process_count() == 1:
        return int(number)
    return int(np.max(multihost_utils.process_allgather(np.array(number, np.int32))))


def whole(tree: Any) -> Any:
    """Returns arrays that are shared among processes as whole arrays, in each process.

    Args:
        tree: A pytree of arrays, the same in every process. All processes must call it.

    Returns:
        The tree; with one process, as it is.

    Example:
        >>> whole({"w": 3})
        {'w': 3}
    """
    if jax.process_count() == 1:
        return tree
    return multihost_utils.process_allgather(tree, tiled=True)


def of_first(number: int) -> int:
    """Returns the number of the first process. All processes must call it.

    Args:
        number: The number of this process. It must fit into int32.

    Returns:
        The number that process 0 gave.

    Example:
        >>> of_first(3)
        3
    """
    if jax.process_count() == 1:
        return number
    return int(multihost_utils.broadcast_one_to_all(np.array(number, np.int32)))
