"""Cells that join a product with x and a product with h, and the options they share."""

import dataclasses
import math
from typing import Any, TypedDict

import jax.numpy as jnp

from scanrnn.cells import _checks, _integration, _noise, _norms, _precision
from scanrnn.cells._cell import Noise
from scanrnn.cells._frame import FramedCell
from scanrnn.cells._integration import Multiplicative
from scanrnn.cells._table import Param


class GateOptions(TypedDict, total=False):
    r"""Options of every cell whose gates join :math:`W x` and :math:`U h`.

    Attributes:
        norm: None, or the dialect of the norms. Each dialect replaces :math:`W x + U h
            + b` as below and, in brackets, normalises an LSTM's memory c. LN is layer
            normalisation, with a gain g and in some dialects a shift s.

            - "ba2016" (and haste): :math:`LN(W x; g_1) + LN(U h; g_2) + b`, each over
              all gates jointly, eps 1e-5. [The output sees :math:`LN(c; g_3, s_3)`;
              c itself is carried.] For a GRU this is haste's form: the paper
              normalises the candidate apart from the gates.
            - "fastrnns" (PyTorch's example): :math:`LN(W x; g_1, s_1) +
              LN(U h; g_2, s_2)`, jointly, no b, eps 1e-5. [:math:`LN(c; g_3, s_3)` is
              carried.]
            - "tfa" (TensorFlow Addons): as "fastrnns", but with b, and eps 1e-3.
            - "tf" (`tf.contrib`): :math:`LN(W x + U h; g, s)` gate by gate, no b, eps
              1e-12. [:math:`LN(c; g_3, s_3)` is carried.]
            - "praxis": :math:`LN(W x + U h; g) + b` gate by gate, eps 1e-8.
            - "rms": as "ba2016", but with root-mean-square norms, which subtract no
              mean, without :math:`s_3`, and eps 1e-6.

            Params: the gains `norm_x` and `norm_h`, or `norm`, `[G*H]` for G gates;
            the gain `norm_c` `[H]`; the shifts, which have the same names with `_bias`
            at the end.
        integration: how the products are joined: "additive"; "multiplicative", which
            replaces :math:`W x + U h + b` by :math:`\alpha \odot W x \odot U h +
            \beta_1 \odot U h + \beta_2 \odot W x + b`, with normalised products if
            there is a norm; "wu2016-exploratory" or "wu2016-skip-thought", the same
            with other starting values; or a `Multiplicative`. Params: `alpha`, `beta1`
            and `beta2` `[G*H]`.
        heads: number of blocks of h. Block n of the gates sees only block n of h, so
            `recurrent_kernel` is `[heads, H/heads, G*H/heads]` if there are several.
        recurrent_dropout: probability with which a feature of h is set to zero before
            the product with `recurrent_kernel`, and only there. The mask is the same in
            every step of a sequence.
        mask_per_gate: whether each gate has its own dropout mask.
        use_bias: whether the cell has the bias b. Without it, `bias` and
            `recurrent_bias` are no parameters; shifts of norms stay.
        dtype: the dtype of the GEMM operands, such as `jnp.bfloat16`; None for no cast.
            Products are accumulated in float32 or wider, and everything else is
            computed in float32 or wider. The new carry has the dtype of the old one.

    Example:
        >>> import jax, scanrnn
        >>> options = {"norm": "ba2016", "integration": "multiplicative", "heads": 2}
        >>> params = scanrnn.cells.gru(**options).init(jax.random.key(0), 3, 4)
        >>> params["recurrent_kernel"].shape, params["alpha"].shape
        ((2, 2, 6), (12,))

    References:
        Ba et al., "Layer normalization", 2016, arXiv:1607.06450. Zhang and Sennrich,
        "Root mean square layer normalization", 2019, arXiv:1910.07467. Wu et al., "On
        multiplicative integration with recurrent neural networks", 2016,
        arXiv:1606.06630. Gal and Ghahramani, "A theoretically grounded application of
        dropout in recurrent neural networks", 2016, arXiv:1512.05287.
    """

    norm: str | None
    integration: str | Multiplicative
    heads: int
    recurrent_dropout: float
    mask_per_gate: bool
    use_bias: bool
    dtype: Any


@dataclasses.dataclass(frozen=True, kw_only=True)
class GatedCell(FramedCell):
    """A cell whose gates join a product with x and a product with h.

    The attributes are those of `GateOptions`.
    """

    norm: str | None = None
    integration: Any = "additive"
    heads: int = 1
    recurrent_dropout: float = 0.0
    mask_per_gate: bool = False
    use_bias: bool = True
    dtype: Any = None

    def __post_init__(self):
        """Check the options."""
        _checks.check_option(self.name, "norm", self.norm, _norms.NORMS)
        # Two names of the same integration make equal cells.
        self._set(integration=_integration.find(self.name, self.integration))
        _checks.check_size(self.name, "heads", self.heads)
        rate = self.recurrent_dropout
        rate = _noise.check_rate(self.name, "recurrent_dropout", rate)
        self._set(recurrent_dropout=rate)
        self._set_flags("use_bias", "mask_per_gate")
        self._set(dtype=_precision.compute_dtype(self.dtype))

    @property
    def has_bias(self):
        """Whether b is a parameter: some norms have a shift in its place."""
        return self.use_bias and self.normal.bias

    @property
    def normal(self):
        """The dialect of the norm."""
        return _norms.NORMS[self.norm]

    def table(self, in_features, hidden_features):
        """The two matrices, the bias, and the vectors of the options."""
        D, H, G = in_features, hidden_features, len(self.gates)
        table = {
            "kernel": Param((D, G * H), "kernel", self.gates),
            "recurrent_kernel": self.recurrent_param(H, H),
        }
        if self.has_bias:
            table["bias"] = Param((G * H,), "bias", self.gates)
        table |= self.normal.table(self.gates, H)
        return table | self.integration.table(G * H)

    def recurrent_param(self, in_features, hidden_features):
        """The matrix that multiplies h, or one matrix for each head."""
        G, heads = len(self.gates), self.heads
        shape = in_features // heads, G * hidden_features // heads
        if heads == 1:
            return Param(shape, "recurrent_kernel", self.gates)
        return Param((heads, *shape), "recurrent_kernel", self.gates, stacked=1)

    def check_sizes(self, in_features, hidden_features):
        """Raise ValueError unless `heads` divides H."""
        _checks.check_heads(self.name, hidden_features, self.heads)

    def products(self, p, x, h, noise):
        """W x and U h, `[..., G*H]`, normalised if the dialect does so."""
        wx, uh = p.dot(x, "kernel"), self.recurrent(p, h, noise)
        return self.normal.products(p, wx, uh, uh.shape[-1] // len(self.gates))

    def recurrent(self, p, h, noise, first=0, last=None):
        """U h for the gates `first` to `last - 1`, with recurrent dropout if any."""
        G, mask = len(self.gates), noise.get("recurrent")
        part = slice(first, last)
        if mask is not None:
            mask = mask[..., part, :] if self.mask_per_gate else mask
            h = h.astype(p.dtype)
            h = h[..., None, :] * mask if self.mask_per_gate else h * mask
        if self.heads == 1 and (mask is None or not self.mask_per_gate):
            size = p.width("recurrent_kernel") // G
            return p.dot(h, "recurrent_kernel", _columns(size, part))
        # Each head has its own product; so has each gate if the masks differ.
        axes = "...gnd" if mask is not None and self.mask_per_gate else "...nd"
        h = h.reshape(*h.shape[:-1], self.heads, h.shape[-1] // self.heads)
        kernel = p.reshaped("recurrent_kernel", (self.heads, h.shape[-1], G, -1))
        uh = p.einsum(f"{axes},ndgk->...gnk", h, kernel[:, :, part])
        return uh.reshape(*uh.shape[:-3], math.prod(uh.shape[-3:]))

    def join(self, p, wx, uh, first=0, last=None):
        """The arguments of the gates `first` to `last - 1`, concatenated."""
        G = len(self.gates)
        size = wx.shape[-1] // len(range(G)[first:last])
        part = _columns(size, slice(first, last))
        a = self.integration(p, wx, uh, part)
        a = self.normal.joined(p, a, size, part)
        return p.biased(a, columns=part)

    def noise(self, key, params, xs):
        """The masks of recurrent dropout; see `Cell.noise`."""
        if not self.recurrent_dropout:
            return None
        kernel = params["recurrent_kernel"]
        features = kernel.shape[-2] * self.heads
        rows = (len(self.gates), features) if self.mask_per_gate else (features,)
        shape = (*xs.shape[1:-1], *rows)
        dtype = _precision.widest(kernel.dtype)
        mask = _noise.dropout_mask(key, self.recurrent_dropout, shape, dtype)
        return Noise({"recurrent": mask}, {})


def _columns(size, gates):
    """The columns of these gates, `size` each."""
    if gates == slice(0, None):
        return slice(None)
    stop = None if gates.stop is None else gates.stop * size
    return slice(gates.start * size, stop)


def split(a, count):
    """Split the last axis of `a` into `count` gates."""
    return jnp.split(a, count, axis=-1)
