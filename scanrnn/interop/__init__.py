"""Weights from and to other libraries: names, gate orders, biases and transposes.

`Weights` is the common form: each `from_...` returns one and each `to_...` takes one.
`Weights.layer()` makes a layer of `scanrnn.nnx`, and `Weights.of(layer)` reads one. No
library but Flax is needed: arrays have the names that the other library gives them.

====================== ======== ======= ======= ======= ======= ======= =======
cell                   torch    Keras   Linen   NNX     Haiku   Equinox cuDNN
====================== ======== ======= ======= ======= ======= ======= =======
`elman("tanh")`        yes      yes     yes     yes     -       -       -
`elman("relu")`        yes      yes     yes     yes     yes     -       -
`lstm()`               yes      yes     yes     yes     yes [1] yes     yes
`lstm(projection=P)`   yes      -       -       -       -       -       -
`gru()`                yes      yes     yes     [2]     -       yes     -
`gru`, "cho2014"       -        yes     -       -       -       -       -
`gru`, "haiku"         -        -       -       -       yes     -       -
`mgu()`                -        -       yes     -       -       -       -
`conv_lstm()`          -        yes     yes [1] -       -       -       -
several layers         yes      list    list    list    yes     list    yes
two directions         yes      yes     yes     yes     -       -       yes
====================== ======== ======= ======= ======= ======= ======= =======

Round trips of our weights are exact to the bit, except [1]: these cells add one to the
forget gate in every step, so its bias is exact up to the rounding of that addition. If
a library has two biases, we keep their sum, but :math:`b_{hn}` of a GRU is an array of
its own, `recurrent_bias`. [2] has no place for it: there it must be zero. Options that
change no weight (recurrent dropout, the dtype of matrix products) do not matter.
Options that change equations (norms, peepholes, integration) are an error, because no
other library has them.

If `from_...` gets a layer as an object, it checks the options of that layer. An option
that our cell does not have (another activation, `residual`, `go_backwards`, a class of
your own) is an error. Arrays alone do not contain the options: you must know them. If
an array is missing, is unknown or has a wrong shape, the error names it.
"""

from scanrnn.interop._cudnn import from_cudnn as from_cudnn
from scanrnn.interop._cudnn import to_cudnn as to_cudnn
from scanrnn.interop._equinox import from_equinox as from_equinox
from scanrnn.interop._equinox import to_equinox as to_equinox
from scanrnn.interop._haiku import from_haiku as from_haiku
from scanrnn.interop._haiku import to_haiku as to_haiku
from scanrnn.interop._keras import from_keras as from_keras
from scanrnn.interop._keras import to_keras as to_keras
from scanrnn.interop._linen import from_linen as from_linen
from scanrnn.interop._linen import to_linen as to_linen
from scanrnn.interop._nnx import from_nnx as from_nnx
from scanrnn.interop._nnx import to_nnx as to_nnx
from scanrnn.interop._safetensors import load_safetensors as load_safetensors
from scanrnn.interop._safetensors import save_safetensors as save_safetensors
from scanrnn.interop._torch import from_torch as from_torch
from scanrnn.interop._torch import to_torch as to_torch
from scanrnn.interop._weights import Weights as Weights
