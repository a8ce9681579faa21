"""The rules for XLA's loops: on a GPU and a TPU, with what was compiled; and which run.

Three sizes such as (1024, 32, 128) are steps, batch and features.
"""

from __future__ import annotations

import dataclasses

from scanrnn.executors._parallel_costs import PARALLEL
from scanrnn.executors._unrecorded import UNRECORDED
from scanrnn.executors._xla_cpu import CPU
from scanrnn.executors.run.products import lower_products
from scanrnn.machines import Machine
from scanrnn.planner.rule_groups import (
    MB,
    NOWHERE,
    CostRules,
    FeatureRules,
    MemoryRules,
    RecomputeRules,
    ScanRules,
    SizeRules,
    TripRules,
    UnrollRules,
)
from scanrnn.planner.rules import Rules

GPU = Rules(
    # Compiled for an H100: launches and MB of temporaries of training, with chunks of
    # 64 and 16 steps, where keys decay one by one (2048, 8, 512), 4 heads: gated linear
    # attention 2,789 and 473, 6,692 and 651; RWKV-7 8,015 and 816, 21,839 and 964. The
    # loops of the planner start 22,931 kernels for gated linear attention.
    memories=MemoryRules(steps=(64, 64)),
    # XLA fuses a sum of padded arrays into what reads it. MB of temporaries of training
    # a leaky sum with and without this rule: (32768, 8, 64) 135 and 151, (1048576, 64,
    # 1) 604 and 738; minGRU (2048, 8, 32) 11.6 and 13.1. On a CPU forward passes take
    # up to twice as long with it, on a TPU they take up to 16 % more cycles. Launches,
    # MB and seconds to compile in pairs and without this rule: (2048, 64, 1) 28 1.8 2,
    # 29 3.3 5; (32768, 1, 1) 31 0.5 2, 43 0.7 17; (128, 64, 1) 15 0.2 1, 14 0.1 44;
    # but (2048, 8, 32) 33 5.7, 29 5.0.
    #
    # `joined`: 2 starts more kernels, 8 needs more memory. `apart`: as on a CPU.
    scans=ScanRules(pads=True, joined=4, pairs=(1, 2**31, 2**17), apart=2),
    # No other way to join cotangents. An LSTM's reverse step starts three kernels: the
    # product, whose sum XLA computes in parts; the pointwise part, which adds these up;
    # the cotangents of four gates, joined. If one array `[B, 4, H]` holds them by a
    # choice for each element, and a second one the cotangent of `c` four times, XLA
    # makes one kernel of both. But then the sum of the parts is a kernel: eight steps
    # of (256, 64, 1024), (1024, 16, 768) and (32, 32, 512) start 26 or 27, as before.
    # Only (512, 2, 128), which has no parts, starts 18 instead of 21. With the
    # cotangent of `c` padded to `[B, 4 * H]` nothing changes.
    #
    # A choice: only CPUs were measured. `Options.features_first` may ask for it.
    features_first=NOWHERE,
    # Buffer reuse halves the memory. With several steps per trip, no launch is added.
    overwrites=True,
    # One slice of a row is written in place of four, with the rows of a whole trip.
    packs_gates=True,
    # A norm is one kernel, but four if its mean is kept.
    keeps_statistics=False,
    recompute=RecomputeRules(
        # Recomputing costs one more product for each chunk of steps, and less is
        # stacked at every step. Without chunks, the arrays before and after the loop
        # would take memory too.
        when="chunked",
        # With chunks half as long an LSTM (256, 64, 1024) takes 253 MB of temporaries
        # instead of 320, and 8 % more launches.
        chunks=8,
        # A chunk costs about 30 launches, as many as five steps.
        least=64,
        # Two chunks would still need half of the memory.
        fewest=3,
    ),
    # A GPU has memory of its own, and chunks cost launches. The number is a choice.
    outside_bytes=1024 * MB,
    trips=TripRules(
        # One kernel writes the rows of several steps, and another one updates the
        # counter.
        steps=10,
        # Launches and seconds to compile with at most 10, 32 and 64 steps, in training
        # (2048, 8, 32): SRU 3,953 and 2.0, 1,329 and 13, 945 and 24; LRU 4,053 and 2.1,
        # 1,429 and 5.6, 1,013 and 9.3.
        pointwise=32,
        # Each step of a trip has memory of its own for its carry. The number is a
        # choice. It came with other changes for steps with large states, which were
        # measured only together.
        most=4 * MB,
        # XLA would fuse too many small half-precision steps with one another. An LSTM
        # with layer norms (512, 2, 128) took over ten minutes to compile, and takes 24
        # seconds with this rule. Larger steps compile without it, and it would add a
        # tenth to their launches.
        separate=2**14,
        # XLA would compute a sum along the steps, such as an LSTM's `c`, again for each
        # step from the products of all earlier steps of the trip. So it would keep
        # these products (an attention decoder would take 8.2 MB forward instead of
        # 4.9). This rule adds no launch, because products end kernels anyway. Only in
        # half precision or in reverse it adds 0.9 launches a step.
        separates_products=True,
    ),
    costs=CostRules(
        # The smallest tiles of the kernels that cuBLAS and Triton have for products.
        tile=(64, 16, 16),
        # Compiled for an H100, training a leaky sum, a minGRU, an SRU and an LRU starts
        # 11, 15, 21 and 22 kernels for 32 steps that stack 3 to 7 arrays. With matrix
        # memories a step starts 5 to 31, and has 5 to 23 sums. On an H100 the training
        # of an mLSTM (1024, 4, 512) took 44 ms by loops and 3.5 ms by chunks. Loops
        # were chosen while a step counted as one kernel.
        trip=4,
        # A choice: how it was counted is not written down.
        scan_step=2,
        # On an H200 a step forward of an LSTM (64, 1024) in bfloat16 takes 10
        # microseconds (a matrix of 8 MB), one of (64, 512) 8 (2 MB), and one of (2,
        # 128) 4.
        matrix=1e-12,
        parallel=PARALLEL,
    ),
    # As on a CPU.
    splits=4,
    # Four LSTMs (128,16,256) take 0.56 of the launches in training and 0.62 forward. On
    # a TPU they take 0.93 and 1.66 of the cycles, on a CPU 1.6 and 1.1 of the time.
    wavefront=True,
    # By the source of XLA's runtime, as it says there.
    unrecorded=UNRECORDED,
    sizes=SizeRules(
        # NVIDIA's guide: rows of 16 bytes.
        multiples=(4, 4),
        half=(8, 8),
        # NVIDIA's guide: products of all kinds have tiles of 64, and 256 is the best
        # side.
        side=64,
        best=256,
        # NVIDIA's guide: on a V100 arithmetic limits a recurrence from there on.
        waits=(128, 256),
    ),
)

TPU = Rules(
    # Compiled for a TPU v5e: million cycles and MB of temporaries with chunks of 64 and
    # 16 steps, at the same sizes: gated linear attention 85 and 336, 112 and 508;
    # RWKV-7 194 and 923, 248 and 1,007. The loops of the planner take 108 for gated
    # linear attention.
    memories=MemoryRules(steps=(64, 64)),
    # XLA lays time along the lanes where the 8 to 16 numbers of a step do not fill
    # them. Million cycles and MB of temporaries of training a leaky sum in pairs,
    # without this rule, and by `lax.associative_scan`: (2048, 8, 1) 0.08 0.3, 0.14 0.6,
    # 0.11 0.3; but 0.27, 0.20, 0.30 million cycles with 64 features, and 0.16, 0.10
    # with four. In blocks, without them, and by `lax.associative_scan`: (2**20, 8, 1)
    # 3.5 111, 14 613, 3.8 144; (2**20, 1, 1) 1.3 1.1, 2.0 135, 2.4 1.1. There pairs,
    # and the last form, take minutes to compile.
    #
    # `joined`: 2 takes more cycles, 8 more memory and more cycles. There are as many
    # blocks as lanes; 512 and 1,024 take more cycles. `apart`: as on a CPU.
    scans=ScanRules(joined=4, pairs=(8, 16, 2**17), blocks=(128, 2**18, 32), apart=2),
    # Not `overwrites`: a row that is written late takes 6,000 cycles, an LSTM's product
    # 8,000. Not `packs_gates`: to join the gates takes as long as a product.
    # As on a GPU.
    features_first=NOWHERE,
    # To fill 64 MB with zeros takes 370,000 cycles.
    zero_fills=False,
    # A row of one number takes as long to write as a row of a thousand.
    packs_statistics=True,
    # Otherwise XLA may make time a minor axis, to suit what comes before or after. Then
    # each row is gathered: 118,000 of 150,000 cycles a step. A row that does not fill
    # tiles takes more memory: `[16, 64]` twice its size. Small rows, such as a norm's
    # `[32, 4]`, took 3 % more cycles with their axes reordered. A carry whose axes are
    # swapped, as XLA likes it where the batch is at least as large as the features,
    # swaps each row, too: training an LSTM (64,128,128) took 1.56 million cycles, with
    # a pinned carry it takes 0.77; (64,256,128) 2.2 and 1.4.
    row_tile=(8, 128, 16),
    # Sums of columns are two to seven times slower than products on the matrix units.
    sums_biases_by_products=True,
    recompute=RecomputeRules(
        # A chunk lies in fast memory: an LSTM (1024,16,768) takes a quarter fewer
        # cycles, and 0.2 of lax.scan's temporaries instead of 0.8.
        when="always",
        # The rest of the fast memory is for the computation of the chunk.
        share=0.4,
        # Each kernel takes at least 2,000 cycles, and to join an LSTM's four cotangents
        # takes 8,000. For a chunk of steps at once both are negligible.
        precomputes=True,
    ),
    # A loop in chunks spends a fifth of its cycles on them. The number is a choice.
    outside_bytes=1024 * MB,
    unroll=UnrollRules(
        # Rows of 16 KB take less than the shortest kernel.
        small=4,
        row=2**14,
        # Two steps share kernels: reverse loops take up to a third fewer cycles (but
        # that of an LSTM 4 to 17 % more).
        large=2,
        # A forward loop that makes many arrays would get more kernels.
        few=3,
    ),
    costs=CostRules(
        # The matrix units are 128 by 128, and a register has 8 rows.
        tile=(128, 8, 128),
        # The estimates of a split step are 1.04 of those of a single loop, but it takes
        # 0.4 to 0.9 of the cycles: two and three layers of tanh or LSTM, 64 to 1024
        # features.
        fission=0.8,
        # As on a GPU.
        parallel=PARALLEL,
    ),
    # As on a CPU.
    splits=4,
    sizes=SizeRules(
        # A tile of memory has 8 rows and 128 columns, as in `row_tile`.
        multiples=(8, 128),
        # As on a GPU; not measured on a TPU.
        side=64,
        # Likewise.
        waits=(128, 256),
    ),
)

lower_products("cpu", CPU)


def rules(machine: Machine) -> Rules:
    """The rules on a machine. An unknown platform gets the rules of a GPU."""
    if machine.platform == "cpu":
        return _on_cpu(machine)
    return TPU if machine.platform == "tpu" else GPU


def _on_cpu(machine: Machine) -> Rules:
    return dataclasses.replace(CPU, features_first=_features_first(machine))


def _features_first(cpu: Machine) -> FeatureRules:
    """When the features lie first: on some CPUs this pays less often than on others."""
    assert CPU.features_first is not None
    if "avx512f" not in cpu.units:
        # With AVX2 an LSTM (batch 32, 512 features) takes 0.86 of the time in training.
        # Whole loops were not measured there.
        return CPU.features_first._replace(side=512, loop=None)
    if cpu.vendor == "GenuineIntel":
        return CPU.features_first
    # On an AMD EPYC with AVX-512, a whole loop features first, relative to none: LSTM
    # (8, 1024) 0.84 0.93, (16, 1024) 0.91 0.93, (32, 1024) 0.91 0.94, with layer norm
    # 0.90 0.92; but (48, 1024) 0.99 1.01, (32, 768) 1.05 1.06, a GRU (32, 1024) 0.97
    # 1.03, an Elman network 1.02 1.07.
    return CPU.features_first._replace(least=16 * MB, batch=(16, 32), loop=(8, 32))
