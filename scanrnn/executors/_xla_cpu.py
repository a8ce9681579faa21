"""The rules for XLA's loops on a CPU, with what was timed.

Three sizes such as (1024, 32, 128) are steps, batch and features.
"""

from __future__ import annotations

import jax

from scanrnn.executors._parallel_costs import PARALLEL
from scanrnn.planner.rule_groups import (
    MB,
    CostRules,
    FeatureRules,
    MemoryRules,
    RecomputeRules,
    ScanRules,
    SizeRules,
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
    # On an Intel Xeon with AVX-512 and no AMX, relative to none. LSTM: (8, 1024) 0.90
    # 1.03, (16, 1024) 0.80 0.83, (24, 1024) 0.88 0.84, (8, 768) 0.98 1.04, (16, 768)
    # 0.98 1.02, (48, 768) 0.96 0.87; but (64, 1024) 0.99 0.98, (64, 768) 1.02 1.04,
    # (128, 512) 1.12 1.28, (64, 512) 1.07 1.14, (16, 512) 1.09 0.96. Forward alone, in
    # loops of 512 features with a batch of 24, 32, 48: 1.01 1.02 0.87. GRU: (8, 1024)
    # 0.85 0.94, (16, 1024) 0.80 0.78, (48, 1024) 0.79 0.74, (32, 768) 0.97 0.98. Elman:
    # (8, 1024) 0.79 0.85, (16, 1024) 0.80 0.79, (48, 1024) 0.84 0.82; but (32, 768)
    # 1.00 1.08. With layer norm (32, 768) 0.91 0.83, with multiplicative integration
    # 0.88 0.83.
    features_first=FeatureRules(least=4 * MB, side=768, batch=(16, 48), loop=(8, 48)),
    # XLA transposes a whole operand `[T, B, N]` to contract T and B, but not one axis.
    joins_time=True,
    # There are fast kernels only for contracting the columns of the left operand. A
    # weight gradient of an LSTM (128, 1024) took 67 ms in place of 81; below this size
    # the transpose costs more than it gains.
    transposes_products=2**22,
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
    # A kernel matrix of 2,048 points, in 64 blocks of 32, took three times the time of
    # `lax.scan` to train before the loop, and five times the memory. Input products of
    # an LSTM and a GRU took the same time in the loop and before it, if they were as
    # large.
    hoists=1 / 64,
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
    slow_moves=frozenset("concatenate pad gather dynamic_slice rev cumsum".split()),
    # Forward and training on an AMD EPYC, Zen 4, without and with this rule, in ms (128
    # steps, 16 matrices of 32x32): a covariance 1.8 1.1, 8.0 6.5; an outer product of a
    # row and its norm 2.1 0.8, 8.1 6.3. A copy takes some 1.5 us. Test-time training
    # with a norm (100 steps), relative to `lax.scan`: a matrix of 32x32 1.97 0.91, 1.37
    # 0.75; 16 of 16x16 1.98 0.76, 1.46 0.79. But a covariance of 16x16, forward, 1.02
    # 1.51.
    spreads=2**10,
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
    memories=MemoryRules(
        # Training on an AMD EPYC, with chunks of 8, 16, 32 and 64 steps, in ms: mLSTM
        # (512, 8, 128), 4 heads, 82, 70, 91, 128; Mamba-2 49, 44, 67, 108; gated
        # DeltaNet 118, 85, 143, 186; at (256, 4, 512) with 16, 32 and 64: 96, 128, 123;
        # 38, 43, 53; 146, 152, 127. Keys that decay one by one, with 8, 16, 32 and 64:
        # gated linear attention (512, 8, 128) 112, 120, 207, 203, RWKV-7 277, 289, 564,
        # 687.
        steps=(16, 16),
        # Training on an Intel Xeon with AMX, in chunks and by loops, in ms (T=256, B=1,
        # one head), of RWKV-7, of gated linear attention and of gated DeltaNet, for
        # memories of 1,024 numbers: 4.8 and 1.5, 1.6 and 0.9, 1.4 and 1.4; of 2,304:
        # 6.5 and 2.8, 2.0 and 1.6, 1.6 and 2.7; of 4,096: 7.6 and 9.0, 2.9 and 4.6, 2.7
        # and 6.2; of 16,384: 15 and 23, 7.4 and 12, 4.3 and 15.
        least=4096,
        # Training on an AMD EPYC, Zen 4 (T=256), in chunks divided by in loops that
        # read by `jnp.einsum`, for 1, 8 and 32 matrices of 32x32, of 64x64 and of
        # 128x128. One decay: 0.76 0.75 0.84, 0.57 0.53 0.27, 0.36 0.20 0.25. Keys that
        # decay one by one: 1.3 2.2 2.1, 1.15 1.16 0.86 (with a fifth of the memory),
        # 0.92 0.69 0.84. A delta rule: 1.2 1.4 1.0, 0.64 0.84 0.51, 0.52 0.31 0.29.
        # Loops that read by sums take longer: with 32 matrices of 32x32, DeltaNet 0.56,
        # gated linear attention 0.90.
        matrix=(1024, 4096),
        # Forward there: 1.0 to 2.0, 1.7 to 3.0 and 0.6 to 3.6; by sums 0.52 and 1.1.
        loops_values=True,
    ),
    # `apart`: as an array for each number, a training step with four coupled numbers
    # took 24 s to compile, and one with six over 100 s. `joined`: as on a GPU.
    scans=ScanRules(joined=4, apart=2),
    # The gates of an LSTM are twice its leaves. Training with loops that pass on an
    # outer product, the state of a matrix memory or logits took 1.4 to 22 times the
    # temporaries of one loop.
    splits=4,
    # A vector of AVX-512 has 16 numbers. Loops in parallel: as on a GPU.
    costs=CostRules(tile=(16, 1, 1), parallel=PARALLEL),
    # Likewise; rows of a batch need not fill anything.
    sizes=SizeRules(multiples=(1, 16)),
)
