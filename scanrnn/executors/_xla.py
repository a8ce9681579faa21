"""What XLA likes: its rules on a CPU, a GPU and a TPU, each with what was seen."""

from __future__ import annotations

import dataclasses

from scanrnn.machines import Machine
from scanrnn.planner.rules import MB, Rules

CPU = Rules(
    # XLA for CPU fills and keeps an array for whatever a loop stacks.
    overwrites=True,
    # A bare update is fused with all that reads the array, which is copied for each.
    fences=True,
    # Slices of a slice in a loop are five times slower than slices of the sequence.
    reads_gates_apart=True,
    # CPU libraries pack the other layout anew at every step.
    transposes_weights=True,
    # LSTM, 30 steps, AVX-512, time of training and forward with and without, by batch
    # and features: (16, 1024) 0.84 0.99, (32, 1024) 0.76 0.69, (48, 1024) 0.78 0.67,
    # (32, 768) 0.92 0.88; but (8, 256) 1.38 1.26, (2, 1024) 1.47 1.76, (32, 512) 1.02
    # 1.02, (64, 1024) 1.03 0.94, (128, 1024) 0.97 1.02. An Elman network (32, 1024)
    # 0.79 0.83, (32, 768) 1.10 1.12: the matrix counts, and its shorter side.
    features_first=4 * MB,
    features_first_side=768,
    features_first_batch=(16, 48),
    # One write in place of four.
    packs_gates=True,
    # Loops run last: copies that are ready would be kept throughout the loop.
    delays_copies=True,
    # It saves a pass over the sequence.
    sums_gains_in_loop=True,
    # Memory is read sooner than it is multiplied: nothing is made again by itself.
    recomputes="never",
    # A piece that stays in the second-level cache.
    norm_share=1.0,
    # LSTM (1024,32,128) forward takes 4 MB of temporaries in place of 68, and no more
    # time. Half of it was up to a tenth slower.
    forward_share=1.0,
    # A long sequence must not need memory that `lax.scan` does not.
    outside_bytes=256 * MB,
    # A smaller step gains nothing by a plan.
    least_work=4096,
    tile=(16, 1, 1),
)

GPU = Rules(
    # It halves the memory and, several steps at a time, costs no launch.
    overwrites=True,
    packs_gates=True,
    # A norm is one kernel, but four if its mean is asked for.
    keeps_statistics=False,
    # For a chunk of steps at once it costs one more product, and less is stacked at
    # every step. In one piece what comes before and after a loop would be there, too.
    # A chunk costs some 30 launches, as much as five steps: with chunks half as long an
    # LSTM (256, 64, 1024) takes 253 MB of temporaries in place of 320, and 8 % more
    # launches.
    recomputes="chunked",
    # It has its own memory, and chunks cost it.
    outside_bytes=1024 * MB,
    # Rows of several steps are written by one kernel, and the counter is another.
    trip_steps=10,
    trip_bytes=4 * MB,
    # Half-precision steps as small as these are fused with one another without end: an
    # LSTM with layer norms (512, 2, 128) took over ten minutes to compile, and takes 24
    # seconds so. Larger ones compile as they are, and would take a tenth more launches.
    separate_bytes=2**14,
    # What is added up along the steps, as an LSTM's `c`, is computed again for each
    # step from the products of all steps before it in the trip, which are kept for that
    # (an attention decoder takes 8.2 MB forward in place of 4.9). The products end the
    # kernels anyway: no launch more, but 0.9 a step in half precision or in reverse.
    separates_products=True,
    # Four LSTMs (128,16,256) take 0.56 of the launches in training and 0.62 forward. On
    # a TPU they take 0.93 and 1.66 of the cycles, on a CPU 1.6 and 1.1 of the time.
    wavefront=True,
    tile=(64, 16, 16),
)

TPU = Rules(
    # Not `overwrites`: each late row takes 6,000 cycles, an LSTM's product 8,000. Nor
    # `packs_gates`: joining them takes as long as a product.
    # Zeros for 64 MB are 370,000 cycles.
    zero_fills=False,
    # A row of one number takes as long to write as one of a thousand.
    packs_statistics=True,
    # Else time may become a minor axis, for the sake of what comes before or after, and
    # each row is gathered: 118,000 of 150,000 cycles a step.
    pins_rows=True,
    # Columns are summed two to seven times slower than the matrix units do it.
    sums_biases_by_products=True,
    # A chunk lies in fast memory: an LSTM (1024,16,768) takes a quarter fewer cycles,
    # and 0.2 of lax.scan's temporaries in place of 0.8.
    recomputes="always",
    # As much as fast memory holds, beside what it is computed with.
    chunk_share=0.4,
    # No kernel takes less than 2,000 cycles, and joining an LSTM's four cotangents
    # takes 8,000; for a chunk of steps at once both are nothing.
    precomputes=True,
    # Chunks cost a fifth of the cycles.
    outside_bytes=1024 * MB,
    # Two steps share kernels: reverse loops take up to a third fewer cycles (an LSTM's
    # 4 to 17 % more). A forward loop that makes much is then cut into more of them.
    # Rows of 16 KB take less than a kernel's least.
    unroll_small=4,
    unroll=2,
    tile=(128, 8, 128),
)


def rules(machine: Machine) -> Rules:
    """The rules on a machine; what is unknown is planned for as an accelerator."""
    if machine.platform == "cpu" and machine.units == {"avx2"}:
        # LSTM (32, 512) takes 0.86 of the time in training.
        return dataclasses.replace(CPU, features_first_side=512)
    return {"cpu": CPU, "tpu": TPU}.get(machine.platform, GPU)
