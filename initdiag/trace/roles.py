"""What every parameter is for, read off the operations that used it; names only break ties."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torch import Tensor, nn

from initdiag.schemes import Parameter, Part, Role
from initdiag.schemes.roles import layer_of
from initdiag.trace.lineage import Chain, Lineage
from initdiag.trace.packing import Rows, Walked, rows_of
from initdiag.trace.weights import Product

FIRST = (Role.TOKEN_EMBEDDING, Role.LM_HEAD)  # a tied tensor is the embedding, which governs it


@dataclass
class Notes:
    """Collected during one forward: roles by parameter (and by the rows of it), with what showed them."""

    products: dict[str, Product] = field(default_factory=dict)
    consumers: dict[str, set[str]] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    found: dict[str, dict[Rows | None, tuple[Role, str]]] = field(default_factory=dict)
    walked: Walked = field(default_factory=dict)

    def note(self, parameter: str | None, role: Role, evidence: str, chains: tuple[Chain, ...] = ()) -> None:
        """Keep what an operation shows of a parameter; the first to say so is believed."""
        if parameter is None:
            return
        product = self.products.get(parameter)
        rows = rows_of(chains, product.outputs, self.walked) if product and chains else None
        self.found.setdefault(parameter, {}).setdefault(rows, (role, evidence))

    def attention(self, query: Lineage, key: Lineage, value: Lineage | None) -> None:
        """Note the projections that feed attention."""
        for lineage, role, word in (
            (query, Role.ATTENTION_QUERY, "queries"),
            (key, Role.ATTENTION_KEY, "keys"),
            (value, Role.ATTENTION_VALUE, "values"),
        ):
            if lineage is not None and lineage.left:
                self.note(lineage.projection, role, f"its outputs are the {word} of attention", lineage.chains)

    def gated(self, a: Lineage, b: Lineage) -> None:
        """Note gate and input of a gated MLP: two projections of one value that are multiplied."""
        if not (a.projection and b.projection) or a.mixes or b.mixes or a.products != b.products:
            return
        if a.stat or b.stat or (a.projection == b.projection and _cuts(a) == _cuts(b)):
            return  # a norm by hand; GELU by hand, u·(1 + tanh(…u…)): no gate
        if a.activated == b.activated:
            return
        gate, other = (a, b) if a.activated else (b, a)
        self.note(gate.projection, Role.MLP_GATE, "activated, then multiplied with another projection", gate.chains)
        self.note(other.projection, Role.MLP_IN, "multiplied with an activated projection", other.chains)

    def halves(self, packed: Lineage) -> None:
        """Note the halves of a packed projection that torch's glu multiplies: input first, gate second."""
        product = self.products.get(packed.projection or "")
        if product:
            half = product.outputs // 2
            self.found.setdefault(packed.projection or "", {}).update(
                {
                    ((0, half),): (Role.MLP_IN, "the first half of a GLU"),
                    ((half, 2 * half),): (Role.MLP_GATE, "the second half of a GLU"),
                }
            )

    def bias(self, bias: str | None, weight: str) -> None:
        """Note a bias, and the weight whose outputs it is added to."""
        if bias:
            self.biases[bias] = weight
            self.note(bias, Role.BIAS, f"added to the outputs of {weight}")

    def residual(self, branch: Lineage) -> None:
        """Note the weights that wrote a branch."""
        role = Role.ATTENTION_OUT if branch.attention else Role.MLP_OUT
        for name in (branch.projection, *sorted(branch.also)):
            self.note(name, role, f"the last product of a branch ({branch.kind}) before it is added to the stream")

    def parameters(self, module: nn.Module) -> tuple[Parameter, ...]:
        """Return every parameter of the module, a tied one once, with its role."""
        named = dict(module.named_parameters())
        self._spread()
        roles = {name: self._role(name) for name in named}
        examples: dict[str, tuple[str, Role]] = {}
        for name, (role, _, _) in roles.items():
            if role is not Role.OTHER:
                examples.setdefault(_pattern(name), (name, role))
        result = []
        for name, tensor in named.items():
            role, evidence, parts = roles[name]
            if role is Role.OTHER and not parts and (like := examples.get(_pattern(name))):
                role, evidence = like[1], f"named like {like[0]}"
            result.append(self._parameter(name, tensor, role, evidence, parts))
        return tuple(result)

    def _role(self, name: str) -> tuple[Role, str, tuple[Part, ...]]:
        found = self.found.get(name)
        if not found:
            used = name in self.products
            return Role.OTHER, "" if used else "no operation that tells what it is for used it", ()
        for first in FIRST:
            for role, evidence in found.values():
                if role is first:
                    return role, evidence, ()
        partial = {rows: answer for rows, answer in found.items() if rows is not None}
        if len({role for role, _ in partial.values()}) > 1:
            parts = tuple(Part(role, rows) for rows, (role, _) in sorted(partial.items()) if rows)
            evidence = "; ".join(dict.fromkeys(said for _, said in partial.values()))
            return parts[0].role, f"packed: {evidence}", parts
        role, evidence = found.get(None) or next(iter(found.values()))
        if role is Role.BIAS and any(kind is Role.ROUTER for kind, _ in self.found.get(self.biases[name], {}).values()):
            role = Role.ROUTER_BIAS
        return role, evidence, ()

    def _spread(self) -> None:
        """A product whose outputs only feed other products has the role of what it feeds: low-rank and MLP inputs."""
        feeds = {
            Role.MLP_OUT: (Role.MLP_IN, "it feeds the last product of an MLP branch"),
            Role.ATTENTION_QUERY: (Role.ATTENTION_QUERY, "it feeds the queries"),
            Role.ATTENTION_KEY: (Role.ATTENTION_KEY, "it feeds the keys"),
            Role.ATTENTION_VALUE: (Role.ATTENTION_VALUE, "it feeds the values"),
            Role.MLP_IN: (Role.MLP_IN, "it feeds the input of an MLP"),
        }
        for _ in range(len(self.products)):
            todo = [name for name in self.products if name not in self.found and self.consumers.get(name)]
            before = len(self.found)
            for name in todo:
                for consumer in sorted(self.consumers[name]):
                    role = next((role for role, _ in self.found.get(consumer, {}).values()), None)
                    if role in feeds:
                        self.note(name, *feeds[role])
                        break
            if len(self.found) == before:
                return

    def _parameter(self, name: str, tensor: Tensor, role: Role, evidence: str, parts: tuple[Part, ...]) -> Parameter:
        shape = tuple(tensor.shape)
        product = self.products.get(name) or self.products.get(self.biases.get(name, ""))
        fan_in = product.fan_in if product else shape[-1] if len(shape) > 1 else 1
        transposed = name in self.products and self.products[name].transposed
        return Parameter(name, shape, role, fan_in, layer_of(name), transposed, parts, evidence)


def _pattern(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _cuts(lineage: Lineage) -> set[tuple[object, ...]]:
    """How a value was cut out of its product's outputs, to be compared with another."""
    return {(chain.shape, *(repr(step) for step in chain.steps)) for chain in lineage.chains}
