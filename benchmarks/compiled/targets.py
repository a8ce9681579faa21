"""The machines of the reports, and how to compile for them without having them.

Both compilers are packages: `libtpu`, and JAX's CUDA plugin with `ptxas`. The devices
themselves are used with the same compilers.
"""

import functools
from typing import NamedTuple

# The data of an H100 SXM, as a text proto of XLA's GpuTargetConfig.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Target(NamedTuple):
    """A machine to compile for.

    Attributes:
      title: the name in reports.
      environment: variables that must be set before JAX is imported. Those of the two
        machines exclude each other, so each machine gets a process of its own.
      topology: arguments of `get_topology_desc`.
      options: options of the compiler.
      packages: distributions that contain the compiler.
      has_thunks: whether XLA's runtime executes thunks, which say what a host starts.
    """

    title: str
    environment: dict[str, str]
    topology: dict[str, str]
    options: dict[str, str]
    packages: tuple[str, ...]
    has_thunks: bool = False


TARGETS = {
    "h100": Target(
        title="NVIDIA H100",
        environment={"JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"},
        topology={"platform": "cuda", "topology": "1x1x1", "target_config": H100},
        # There is no device on which kernels could be tried.
        options={"xla_gpu_autotune_level": "0"},
        packages=("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
        has_thunks=True,
    ),
    "v5e": Target(
        title="TPU v5e",
        environment={
            "TPU_SKIP_MDS_QUERY": "1",
            # Nothing runs on a device, so several compilers may load it at once.
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
            "TPU_ACCELERATOR_TYPE": "v5litepod-1",
            "TPU_WORKER_HOSTNAMES": "localhost",
        },
        topology={"platform": "tpu", "topology_name": "v5e:2x2"},
        options={},
        packages=("libtpu",),
    ),
}

# A TPU of two cores, which some kernels are compiled for.
V5P = "v5p"
TWO_CORES = TARGETS["v5e"]._replace(
    title="TPU v5p",
    environment=TARGETS["v5e"].environment | {"TPU_ACCELERATOR_TYPE": "v5p-8"},
    topology={"platform": "tpu", "topology_name": "v5p:2x2x1"},
)
# The machine that this runs on, for single rows.
HERE = "cpu"
ALL = {**TARGETS, V5P: TWO_CORES, HERE: Target("this CPU", {}, {}, {}, ())}


def environment(name: str) -> dict[str, str]:
    """The variables of a process that compiles for this machine and runs nothing."""
    return {"JAX_PLATFORMS": "cpu", **ALL[name].environment}


@functools.cache
def sharding(name: str):
    """A sharding on one device of the machine, which need not exist."""
    import jax
    from jax.experimental import topologies
    from jax.sharding import SingleDeviceSharding

    if name == HERE:
        return SingleDeviceSharding(jax.devices()[0])
    topology = topologies.get_topology_desc(**ALL[name].topology)
    return SingleDeviceSharding(topology.devices[0])


# The planner's names of these machines.
MACHINES = {"h100": "h100", "v5e": "tpu v5e", V5P: "tpu v5p", HERE: "cpu"}
