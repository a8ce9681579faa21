"""The base class of convolutional cells, and the options that they share."""

import dataclasses
from typing import Any, TypedDict

from scanrnn.cells import _checks, _precision
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._table import Param, with_biases


class ConvOptions(TypedDict, total=False):
    """Options of every convolutional cell.

    Attributes:
        kernel_size: sizes of the window, one for each of 1, 2 or 3 spatial axes; an int
            is the window of one axis. The default is (3, 3). The stride is 1, and the
            input is padded with zeros so that spatial sizes stay the same (SAME; with a
            window of even size there is one more zero at the end). The windows of x and
            of h have the same size.
        use_bias: whether the cell has a bias; without it, `bias` and `recurrent_bias`
            are no parameters.
        dtype: the dtype of the operands of convolutions, such as `jnp.bfloat16`; None
            for no cast. Products are accumulated in float32 or wider, and everything
            else is computed in float32 or wider. The new carry has the dtype of the old
            one.

    Example:
        >>> import jax, scanrnn
        >>> cell = scanrnn.cells.conv_lstm(kernel_size=(5, 3))
        >>> cell.init(jax.random.key(0), 2, 4)["recurrent_kernel"].shape
        (5, 3, 4, 16)
    """

    kernel_size: int | tuple[int, ...]
    use_bias: bool
    dtype: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvCell(FramedCell):
    """A cell whose gates join a convolution of x and a convolution of h.

    The attributes are those of `ConvOptions`.
    """

    kernel_size: Any = (3, 3)
    use_bias: bool = True
    dtype: Any = None

    def __post_init__(self):
        """Check the options; an int and a tuple of that int give equal cells."""
        sizes = self.kernel_size
        sizes = tuple(sizes) if isinstance(sizes, tuple | list) else (sizes,)
        for size in sizes:
            _checks.check_size(self.name, "kernel_size", size)
        if not 1 <= len(sizes) <= 3:
            raise ValueError(
                f"{self.name}: kernel_size={self.kernel_size!r} has {len(sizes)} "
                "spatial axes, want 1, 2 or 3"
            )
        self._set(kernel_size=tuple(int(size) for size in sizes))
        self._set_flags("use_bias")
        self._set(dtype=_precision.compute_dtype(self.dtype))

    @property
    def num_feature_axes(self):
        """The number of the spatial axes, plus one for the channels."""
        return len(self.kernel_size) + 1

    def table(self, in_features, hidden_features):
        """The two kernels, gate by gate along their last axes, and the bias."""
        window, columns = self.kernel_size, len(self.gates) * hidden_features
        kernel = *window, in_features, columns
        recurrent = *window, hidden_features, columns
        table = {
            "kernel": Param(kernel, "kernel", self.gates),
            "recurrent_kernel": Param(recurrent, "recurrent_kernel", self.gates),
            "bias": Param((columns,), "bias", self.gates),
        }
        return with_biases(self.use_bias, table, "bias")

    def _check(self, params, x):
        """Raise unless `params` are this cell's and `x` fits them; return F."""
        hidden_features = super()._check(params, x)
        if x.ndim < self.num_feature_axes:
            raise ValueError(
                f"{self.name}: x has shape {x.shape}, want {len(self.kernel_size)} "
                f"spatial axes and the features behind its batch axes: kernel_size="
                f"{self.kernel_size}"
            )
        return hidden_features
