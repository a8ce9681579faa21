"""How the two products of a cell are joined: added, or multiplied as well."""

import dataclasses

from scanrnn.cells import _checks
from scanrnn.cells._table import Param


@dataclasses.dataclass(frozen=True)
class Multiplicative:
    r"""Multiplicative integration, and the starting values of its vectors.

    .. math::
        \alpha \odot W x \odot U h + \beta_1 \odot U h + \beta_2 \odot W x + b

    Attributes:
        alpha: starting value of :math:`\alpha`.
        beta1: starting value of :math:`\beta_1`, which multiplies :math:`U h`.
        beta2: starting value of :math:`\beta_2`, which multiplies :math:`W x`.

    Raises:
        TypeError: if one of them is not a number.

    Example:
        >>> import jax, scanrnn
        >>> two = scanrnn.cells.Multiplicative(alpha=2.0)
        >>> cell = scanrnn.cells.elman(integration=two)
        >>> cell.init(jax.random.key(0), 3, 2)["alpha"].tolist()
        [2.0, 2.0]

    Reference:
        Wu et al., "On multiplicative integration with recurrent neural networks", 2016,
        arXiv:1606.06630.
    """

    alpha: float = 1.0
    beta1: float = 0.5
    beta2: float = 0.5

    def __post_init__(self):
        """Check that the starting values are numbers."""
        for field in dataclasses.fields(self):
            number = _checks.check_number(
                "Multiplicative", field.name, getattr(self, field.name)
            )
            object.__setattr__(self, field.name, number)

    def table(self, size):
        """The three vectors, one number for each feature of each gate."""
        starts = dataclasses.asdict(self)
        return {name: Param((size,), start) for name, start in starts.items()}

    def __call__(self, p, wx, uh, part):
        """Join `wx` and `uh`, the columns `part` of the gates, without the bias."""
        alpha, beta1, beta2 = (p[n][..., part] for n in ("alpha", "beta1", "beta2"))
        return alpha * wx * uh + beta1 * uh + beta2 * wx


@dataclasses.dataclass(frozen=True)
class _Additive:
    def table(self, size):
        del size
        return {}

    def __call__(self, p, wx, uh, part):
        del p, part
        return wx + uh


INTEGRATIONS = {
    "additive": _Additive(),
    "multiplicative": Multiplicative(),  # the paper's character models
    "wu2016-exploratory": Multiplicative(2.0, 0.5, 0.5),
    "wu2016-skip-thought": Multiplicative(1.0, 1.0, 1.0),
}


def find(where, integration):
    """The integration, given by its name or as itself."""
    if isinstance(integration, Multiplicative | _Additive):
        return integration
    _checks.check_option(where, "integration", integration, INTEGRATIONS)
    return INTEGRATIONS[integration]
