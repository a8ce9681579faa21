"""Weights from and to other libraries, by name: gate orders, biases, transposes.

All of them meet in `Weights`: `from_...` gives one, `to_...` takes one, and
`Weights.layer()` and `Weights.of(layer)` are the way to layers of `scanrnn.nnx`. No
library but Flax is needed for it: arrays come and go by the names they have there.

====================== ======== ======= ======= ======= ======= ======= =======
cell                   torch    Keras   Linen   NNX     Haiku   Equinox cuDNN
====================== ======== ======= ======= ======= ======= ======= =======
`elman("tanh")`        yes      yes     yes     yes     -       -       -
`elman("relu")`        yes      yes     yes     yes     yes     -       -
`lstm()`               yes      yes     yes     yes     yes [1] yes     yes
`lstm(projection=P)`   yes      -       -       -       -       -       -
`gru()`                yes      yes     yes     [2]     -       yes     -
`gru("cho2014")`       -        yes     -       -       -       -       -
`gru("haiku")`         -        -       -       -       yes     -       -
`mgu()`                -        -       yes     -       -       -       -
`conv_lstm()`          -        yes     yes [1] -       -       -       -
several layers         yes      list    list    list    yes     list    yes
two directions         yes      yes     yes     yes     -       -       yes
====================== ======== ======= ======= ======= ======= ======= =======

Round trips of our weights are exact to the bit, except [1]: these add one to the forget
gate in every step, so its bias is exact to the rounding of that addition. Of two biases
we keep the sum. [2] has no place for the bias :math:`b_{hn}`, which must be zero. All
that changes no weight (recurrent dropout, the dtype of products) does not matter; what
changes equations (norms, peepholes, integration) no other library has, and is refused.

The other way alike: a layer that comes as an object is asked for its options, and one
that our cell has not (another activation, `residual`, `go_backwards`, a class of one's
own) is refused by its name. Arrays alone do not tell such things: there it is the user
who knows. An array that is missing, has no place or another shape is named.
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
