"""The rules for XLA's loops, with what was timed (CPU) or compiled (GPU, TPU).

Three sizes such as (1024, 32, 128) are steps, batch and features.
"""

from __future__ import annotations

import dataclasses

import jax

from scanrnn.executors._unrecorded import UNRECORDED
from scanrnn.executors.run.products import lower_products
from scanrnn.machines import Machine
from scanrnn.planner.rule_groups import (
    MB,
    CostRules,
    FeatureRules,
    RecomputeRules,
    ScanRules,
    SizeRules,
    TripRules,
    UnrollRules,
)
from scanrnn.planner.rules import Rules

CPU = Rules(
    # XLA for CPU fills an array with zeros, and keeps it, for each output of a loop.
    overwrites=True,
    # Without a fence, XLA fuses the last write with each reader, and copies the array.
    fences=True,
    # Slices of a slice in a loop are five times slower than slices of the sequence.
    reads_gates_apart=True,
    # CPU libraries would pack the other layout again at every step.
    transposes_weights=True,
    # LSTM, 30 steps, AVX-512: times of training and of forward, relative to without
    # this rule, by (batch, features): (16, 1024) 0.84 0.99, (32, 1024) 0.76 0.69,
    # (48, 1024) 0.78 0.67, (32, 768) 0.92 0.88; but (8, 256) 1.38 1.26, (2, 1024) 1.47
    # 1.76, (32, 512) 1.02 1.02, (64, 1024) 1.03 0.94, (128, 1024) 0.97 1.02. An Elman
    # network: (32, 1024) 0.79 0.83, (32, 768) 1.10 1.12. So the size of the matrix
    # matters, and its shorter side.
    #
    # `loop`: a whole loop, with AVX-512 and AMX, relative to products that are
    # transposed at every step (batch 8: to none). LSTM: (8, 1024) 0.83 0.88, (16, 1024)
    # 0.81 0.82, (32, 1024) 0.89 0.88, (48, 1024) 0.96 0.90, (32, 768) 0.95 0.89, (24,
    # 1536) 0.82 0.87; but (64, 1024) 1.00 0.97, (32, 512) 1.05 0.94. With layer norm,
    # (32, 1024) 0.85 0.78. GRU: (8, 1024) 0.78 0.88, (32, 1024) 0.86 0.85, (32, 768)
    # 0.91 0.87. Elman: (32, 1024) 0.85 0.93, but (48, 1024) 1.04 1.05.
    features_first=FeatureRules(least=4 * MB, side=768, batch=(16, 48), loop=(8, 48)),
    # XLA transposes a whole operand `[T, B, N]` to contract T and B, but not one axis.
    joins_time=True,
    # There are fast kernels only for contracting the columns of the left operand. A
    # weight gradient of an LSTM (128, 1024) took 67 ms in place of 81; below this size
    # the transpose costs more than it gains.
    large_product=2**22,
    # In bfloat16 a slice of an operand would become one of float32, and a barrier only
    # changes the layout, but operands of a loop have the layout that they declare.
    halves_products=True,
    # One write instead of four for the gates of an LSTM.
    packs_gates=True,
    # XLA runs loops last, so early copies would be kept throughout the loop.
    delays_copies=True,
    # This saves a pass over the sequence.
    sums_gains_in_loop=True,
    # jaxlib 0.10.2 took 27 us to multiply arrays of [8, 1, 32, 32] and to sum over the
    # last axis, and 3.6 us without the axis of size 1. Later ones do not mind the axis.
    squeezes_reductions=True,
    # Reading memory is faster than multiplying, so recompute nothing unless asked.
    recompute=RecomputeRules("never"),
    # Training on an AMD EPYC with AVX-512 and 2 cores, relative to `lax.scan`, without
    # and with this rule: an sLSTM with log-sigmoid gates and heads 1.40 0.87, fast
    # weights 1.55 0.76, a sparse reservoir 1.4 1.06. Since it also keeps noise, joined
    # values, and sums and maxima of larger arrays: a stochastic differential equation
    # 1.20 0.80, a heat equation 1.19 1.06 (with twice the temporaries), a hidden Markov
    # model 0.89 0.64.
    keeps_costly=True,
    # XLA computes these element by element, with a branch or an address for each.
    slow_moves=frozenset(
        ("concatenate", "pad", "gather", "dynamic_slice", "rev", "cumsum")
    ),
    # A piece then stays in the second-level cache.
    norm_share=1.0,
    # XLA sums over the columns of a single step five times more slowly.
    norm_steps=2,
    # LSTM (1024,32,128) forward takes 4 MB of temporaries instead of 68, and no more
    # time. Half of this share was up to a tenth slower.
    forward_share=1.0,
    # A ConvGRU and a ConvLSTM took 1.00 to 1.16 of `lax.scan`'s time with convolutions
    # of all steps at once, and 0.99 to 1.01 with one for each step, with a twelfth and
    # a fifth of the temporaries. Kernels that are larger than what a step makes of
    # them are read once for all steps.
    convolves_by_step=True,
    # A long sequence must not need memory that `lax.scan` does not.
    outside_bytes=256 * MB,
    # On an Intel Xeon smaller steps gain nothing. Between this and 4,096 operations,
    # training took 0.6 to 1.2 of `lax.scan`'s time without products (mean 0.9), and
    # 0.2 to 1.0 with products of several rows.
    least_work=128,
    # JAX 0.12 compiles `lax.scan` over products of one row better: an LSTM (1024, 1,
    # 32) took 1.6 of its time, and 0.7 by jax 0.10.2. JAX 0.11 was not measured.
    least_row_work=4096 if jax.__version_info__ < (0, 11) else 2**15,
    # A parallel scan holds the carries of all steps, and is not always faster than a
    # loop: on an AMD EPYC it took 0.5 to 3 times as long in training.
    in_parallel=False,
    # Training on an AMD EPYC, with chunks of 8, 16, 32 and 64 steps, in ms: mLSTM (512,
    # 8, 128), 4 heads, 82, 70, 91, 128; Mamba-2 49, 44, 67, 108; gated DeltaNet 118,
    # 85, 143, 186; at (256, 4, 512) with 16, 32 and 64: 96, 128, 123; 38, 43, 53; 146,
    # 152, 127. Keys that decay one by one, with 8, 16, 32 and 64: gated linear
    # attention (512, 8, 128) 112, 120, 207, 203, RWKV-7 277, 289, 564, 687.
    memory_steps=(16, 16),
    # Training on an Intel Xeon with AMX, in chunks and by loops, in ms (T=256, B=1, one
    # head), of RWKV-7, of gated linear attention and of gated DeltaNet, for memories of
    # 1,024 numbers: 4.8 and 1.5, 1.6 and 0.9, 1.4 and 1.4; of 2,304: 6.5 and 2.8, 2.0
    # and 1.6, 1.6 and 2.7; of 4,096: 7.6 and 9.0, 2.9 and 4.6, 2.7 and 6.2; of 16,384:
    # 15 and 23, 7.4 and 12, 4.3 and 15.
    memory_least=4096,
    # A vector of AVX-512 has 16 numbers.
    costs=CostRules(tile=(16, 1, 1)),
    sizes=SizeRules(multiples=(1, 16)),
)

GPU = Rules(
    # Compiled for an H100: launches and MB of temporaries of training, with chunks of
    # 64 and 16 steps, where keys decay one by one (2048, 8, 512), 4 heads: gated linear
    # attention 2,789 and 473, 6,692 and 651; RWKV-7 8,015 and 816, 21,839 and 964. The
    # loops of the planner start 22,931 kernels for gated linear attention.
    memory_steps=(64, 64),
    # XLA fuses a sum of padded arrays into what reads it. MB of temporaries of training
    # a leaky sum with and without this rule: (32768, 8, 64) 135 and 151, (1048576, 64,
    # 1) 604 and 738; minGRU (2048, 8, 32) 11.6 and 13.1. On a CPU forward passes take
    # up to twice as long with it, on a TPU they take up to 16 % more cycles. Launches,
    # MB and seconds to compile in pairs and without this rule: (2048, 64, 1) 28 1.8 2,
    # 29 3.3 5; (32768, 1, 1) 31 0.5 2, 43 0.7 17; (128, 64, 1) 15 0.2 1, 14 0.1 44;
    # but (2048, 8, 32) 33 5.7, 29 5.0.
    scans=ScanRules(pads=True, pairs=(1, 2**31, 2**17)),
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
    # A GPU has memory of its own, and chunks cost launches.
    outside_bytes=1024 * MB,
    trips=TripRules(
        # One kernel writes the rows of several steps, and another one updates the
        # counter.
        steps=10,
        # Launches and seconds to compile with at most 10, 32 and 64 steps, in training
        # (2048, 8, 32): SRU 3,953 and 2.0, 1,329 and 13, 945 and 24; LRU 4,053 and 2.1,
        # 1,429 and 5.6, 1,013 and 9.3.
        pointwise=32,
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
        # On an H200 a step forward of an LSTM (64, 1024) in bfloat16 takes 10
        # microseconds (a matrix of 8 MB), one of (64, 512) 8 (2 MB), and one of (2,
        # 128) 4.
        matrix=1e-12,
    ),
    # Four LSTMs (128,16,256) take 0.56 of the launches in training and 0.62 forward. On
    # a TPU they take 0.93 and 1.66 of the cycles, on a CPU 1.6 and 1.1 of the time.
    wavefront=True,
    unrecorded=UNRECORDED,
    sizes=SizeRules(
        # NVIDIA's guide: rows of 16 bytes.
        multiples=(4, 4),
        half=(8, 8),
        # NVIDIA's guide: products of all kinds have tiles of 64, and 256 is the best
        # side.
        side=64,
        best=256,
        waits=(128, 256),
    ),
)

TPU = Rules(
    # Compiled for a TPU v5e: million cycles and MB of temporaries with chunks of 64 and
    # 16 steps, at the same sizes: gated linear attention 85 and 336, 112 and 508;
    # RWKV-7 194 and 923, 248 and 1,007. The loops of the planner take 108 for gated
    # linear attention.
    memory_steps=(64, 64),
    # XLA lays time along the lanes where the 8 to 16 numbers of a step do not fill
    # them. Million cycles and MB of temporaries of training a leaky sum in pairs,
    # without this rule, and by `lax.associative_scan`: (2048, 8, 1) 0.08 0.3, 0.14 0.6,
    # 0.11 0.3; but 0.27, 0.20, 0.30 million cycles with 64 features, and 0.16, 0.10
    # with four. In blocks, without them, and by `lax.associative_scan`: (2**20, 8, 1)
    # 3.3 77, 14 613, 3.8 144; (2**20, 1, 1) 1.3 1.1, 2.0 135, 2.4 1.1. There pairs, and
    # the last form, take minutes to compile.
    scans=ScanRules(pairs=(8, 16, 2**17), blocks=(2**18, 32)),
    # Not `overwrites`: a row that is written late takes 6,000 cycles, an LSTM's product
    # 8,000. Not `packs_gates`: to join the gates takes as long as a product.
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
    # A loop in chunks spends a fifth of its cycles on them.
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
        split=0.8,
    ),
    sizes=SizeRules(
        multiples=(8, 128),
        # As on a GPU.
        side=64,
        waits=(128, 256),
    ),
)

lower_products("cpu", CPU)


def rules(machine: Machine) -> Rules:
    """The rules on a machine. An unknown platform gets the rules of a GPU."""
    if machine.platform == "cpu" and "amx_bf16" not in machine.units:
        return _without_amx(machine)
    return {"cpu": CPU, "tpu": TPU}.get(machine.platform, GPU)


def _without_amx(machine: Machine) -> Rules:
    """The rules on a CPU without AMX: there features first pays less often."""
    assert CPU.features_first is not None
    if machine.units == {"avx2"}:
        # With AVX2 an LSTM (batch 32, 512 features) takes 0.86 of the time in training.
        # Whole loops were not measured there.
        first = CPU.features_first._replace(side=512, loop=None)
        return dataclasses.replace(CPU, features_first=first)
    # On an AMD EPYC with AVX-512, a whole loop features first, relative to none: LSTM
    # (8, 1024) 0.84 0.93, (16, 1024) 0.91 0.93, (32, 1024) 0.91 0.94, with layer norm
    # 0.90 0.92; but (48, 1024) 0.99 1.01, (32, 768) 1.05 1.06, a GRU (32, 1024) 0.97
    # 1.03, an Elman network 1.02 1.07.
    first = CPU.features_first._replace(least=16 * MB, batch=(16, 32), loop=(8, 32))
    return dataclasses.replace(CPU, features_first=first)
