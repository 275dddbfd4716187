"""`init.roles` of a config: what single roles are drawn from, whatever the scheme says."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from initdiag.config.fields import LARGEST, NotNegative, Positive, Section, Value
from initdiag.schemes import Draw, Role
from initdiag.schemes.answers import DISTRIBUTIONS


class OwnDraw(Section):
    """Exactly one distribution. Formulas may use the sizes of the model (d_model, n_layers, …), fan_in and fan_out of
    the parameter, its layer (from 0), and the parameters of the scheme."""

    normal: NotNegative | None = Field(default=None, description="a normal distribution, by its std")
    uniform: NotNegative | None = Field(default=None, description="uniform on ± this bound; its std is bound / sqrt(3)")
    truncated: NotNegative | None = Field(default=None, description="a normal distribution that is cut, by its sigma")
    orthogonal: NotNegative | None = Field(default=None, description="an orthogonal matrix times this gain")
    constant: Value | None = Field(default=None, description="the same value everywhere")
    cut: Positive | None = Field(default=None, description="where truncated is cut, in sigmas; needed with it")
    corrected: bool = Field(
        default=False,
        description="truncated is the std that is left after cutting (as in JAX), not the sigma before it (PyTorch)",
    )
    unscaled: NotNegative | None = Field(
        default=None,
        description="the same number without its depth factor: the scaling of the residual branches that a model "
        "really has is measured against it; default: there is no depth factor",
    )

    @property
    def given(self) -> dict[str, float | str]:
        """The distributions that were given: one, in a config that has been validated."""
        return {name: value for name in DISTRIBUTIONS if (value := getattr(self, name)) is not None}


Own = Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | OwnDraw | None


def _own(description: str) -> Any:
    return Field(default=None, description=description)


class Roles(Section):
    """What each role is drawn from: {normal: …}, {truncated: …, cut: …}, a bare number for a constant; else as the
    scheme says."""

    token_embedding: Own = _own("rows of tokens, also of a head that is tied to them")
    position_embedding: Own = _own("rows of positions")
    attention_query: Own = _own("query projections")
    attention_key: Own = _own("key projections")
    attention_value: Own = _own("value projections")
    attention_out: Own = _own("output projections of attention")
    attention_sink: Own = _own("learned attention logits that no token has")
    mlp_in: Own = _own("the input (up) projections of MLPs and experts")
    mlp_gate: Own = _own("the gate projections of MLPs and experts")
    mlp_out: Own = _own("the output (down) projections of MLPs and experts")
    norm_scale: Own = _own("scales of norms")
    norm_bias: Own = _own("biases of LayerNorms")
    bias: Own = _own("biases of linear layers")
    lm_head: Own = _own("an untied head")
    router: Own = _own("routers of experts")
    router_bias: Own = _own("biases of routers")
    multiplier: Own = _own("learned multipliers of branches")

    @property
    def draws(self) -> dict[Role, Draw]:
        """The roles that were given, as a scheme has them."""
        given = ((Role(name), getattr(self, name)) for name in type(self).model_fields)
        return {role: _draw(own) for role, own in given if own is not None}


def _draw(own: float | OwnDraw) -> Draw:
    if not isinstance(own, OwnDraw):
        return Draw("constant", as_formula(own))
    ((distribution, number),) = own.given.items()
    cut, unscaled = (None if value is None else as_formula(value) for value in (own.cut, own.unscaled))
    return Draw(distribution, as_formula(number), unscaled, cut, own.corrected)


def as_formula(number: float | str) -> str:
    """Return a number as the shortest formula that gives exactly it."""
    return number if isinstance(number, str) else repr(number).removesuffix(".0")
