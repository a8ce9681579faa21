"""The operations that XLA's runtime does not record in a CUDA graph.

Its pass over thunks (`command_buffer_conversion_pass.cc`) records kernels, copies on
the device, and calls of libraries for products. It does not record control flow and
collectives, unless asked to (`xla_gpu_enable_command_buffer`). It records a call of
another library only if the handler of the call permits it, and those of JAX for linear
algebra do not (`jaxlib/gpu/solver_kernels_ffi.cc`).
"""

UNRECORDED = frozenset(
    # Control flow, and functions that JAX lowers to loops.
    "while cond scan igamma igammac igamma_grad_a random_gamma"
    " regularized_incomplete_beta"
    # Linear algebra, transforms and convolutions by libraries.
    " cholesky cholesky_update eig eigh geqp3 geqrf householder_product lu"
    " lu_pivots_to_permutation ormqr qr svd symmetric_product triangular_solve"
    " tridiagonal tridiagonal_solve fft conv_general_dilated"
    # What the host computes, and calls whose handlers are somebody else's.
    " pure_callback io_callback debug_callback debug_print ffi_call"
    # What several devices compute together.
    " psum psum_invariant unreduced_psum pmax pmin ppermute pbroadcast all_gather"
    " all_gather_invariant all_gather_reduced all_to_all ragged_all_to_all"
    " reduce_scatter unreduced_reduce_scatter".split()
)
