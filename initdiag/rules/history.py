"""Rules on what init code did, or left undone, while the module was built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from initdiag.measure import ParameterMeasure
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from initdiag.schemes import Constant

NAMED = 3  # names spelled out in a message; the rest is counted


def _unwritten(evidence: Evidence) -> Iterator[Trouble]:
    names = evidence.measured.history.unwritten
    parameters = [name for name in names if name in _parameters(evidence)]
    buffers = [name for name in names if name not in parameters]
    if parameters:
        yield Trouble(
            f"{_listed(parameters)}: memory that init never wrote; expected every parameter to be drawn or filled",
            parameters[0],
            f"write it in your init function, after to_empty() where the model is built on the meta device: "
            f"{_draw(evidence, parameters[0])}",
            "init.scheme",
        )
    if buffers:
        yield Trouble(
            f"{_listed(buffers)}: memory that init never wrote; expected every buffer to hold its values",
            buffers[0],
            f"to_empty() and torch.empty bring no values: move the lines that compute it from __init__ into a method "
            f"that your init function calls again after to_empty(); end it with {as_python(buffers[0])}.copy_(values)",
            "init.scheme",
        )


def _rescaled(evidence: Evidence) -> Iterator[Trouble]:
    rescaled = evidence.measured.history.rescaled
    if rescaled:
        # one init function, one fault: its largest factor stands for all
        name, factor = max(rescaled, key=lambda pair: max(abs(pair[1]), 1 / abs(pair[1])))
        measured = _parameters(evidence).get(name)
        std = f"std={measured.std:.4g}" if measured is not None and measured.std else "std=..."
        yield Trouble(
            f"{_listed([name, *(other for other, _ in rescaled if other != name)])}: a second call of the module's own "
            f"init multiplies what is there by {factor:.4g}; expected the same draw however often it is called",
            name,
            f"draw with the final std in one step, instead of scaling what an earlier line drew: "
            f"nn.init.normal_({as_python(name)}, {std})",
            "init.scheme",
        )


def _untouched(evidence: Evidence) -> Iterator[Trouble]:
    names = () if evidence.subject.drawn_by_us else evidence.measured.history.untouched
    matrices = {name for name, measured in _parameters(evidence).items() if len(measured.shape) > 1}
    skipped = matrices.intersection(names)
    if not names:
        return
    # An init function that writes most matrices and misses some has a hole; one that writes a few (a zero head over
    # PyTorch's defaults) means those few, and one that leaves out no matrix leaves biases to PyTorch, as many do.
    hole = 0 < 2 * len(skipped) < len(matrices)
    yield Trouble(
        f"{_listed(names)}: your init function never wrote {'it' if len(names) == 1 else 'them'}, so PyTorch's "
        f"defaults stand; it wrote {len(matrices) - len(skipped)} of {len(matrices)} matrices",
        names[0],
        f"its test (isinstance, or a name that ends in ...) doesn't match here: add {_draw(evidence, names[0])}; where "
        "PyTorch's default is meant, draw it there by name",
        "init.scheme",
        Severity.WARNING if hole else Severity.INFO,
    )


def _tie(evidence: Evidence) -> Iterator[Trouble]:
    history, wiring = evidence.measured.history, evidence.measured.wiring
    head, table = wiring.head or "head.weight", wiring.embedding or "embedding.weight"
    if history.tie_declared is True and history.tie_found is False and not wiring.tied:
        yield Trouble(
            f"the config says that head and embedding are tied, but {head} and {table} are two tensors; expected one",
            head,
            f"tie last: after to_empty(), load_state_dict(assign=True) or a deep copy, {_module(head)}.weight = "
            f"{_module(table)}.weight",
            "model.tied",
        )
    if history.tie_declared is False and history.tie_found is True:
        yield Trouble(
            "the config says that head and embedding are not tied, but they are one tensor; expected two",
            head,
            "draw the head as a parameter of its own, or set the flag to what the code does: who counts parameters, "
            "shards or exports goes by the flag",
            "model.tied",
            Severity.WARNING,
        )


def _parameters(evidence: Evidence) -> dict[str, ParameterMeasure]:
    return {measured.name: measured for measured in evidence.measured.parameters if not measured.buffer}


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _module(weight: str) -> str:
    return "model." + weight.removesuffix(".weight")


def _draw(evidence: Evidence, name: str) -> str:
    """Return the line of code that writes a parameter."""
    planned = evidence.subject.plan.by_name.get(name)
    if planned is not None and isinstance(planned.distribution, Constant):
        return f"nn.init.constant_({as_python(name)}, {planned.distribution})"
    if len(_parameters(evidence)[name].shape) < 2:
        return f"nn.init.zeros_({as_python(name)}) for a bias, nn.init.ones_ for a gain"
    return f"nn.init.normal_({as_python(name)}, std={_usual_std(evidence):.4g})"


def _usual_std(evidence: Evidence) -> float:
    """Return the declared std, else the one that init drew most matrices with, else GPT-2's 0.02."""
    if evidence.subject.declared.std:
        return evidence.subject.declared.std
    history, parameters = evidence.measured.history, _parameters(evidence)
    stds = Counter(
        distribution.std
        for name, distribution in history.drawn.items()
        if name not in history.untouched and distribution.std and name in parameters and len(parameters[name].shape) > 1
    )
    return stds.most_common(1)[0][0] if stds else 0.02


UNWRITTEN = Rule(
    id="INIT004",
    name="memory-never-written",
    severity="error",
    what="A parameter or buffer holds memory that nothing wrote since it was allocated. The module is built with new "
    "memory filled with nan (torch.utils.deterministic.fill_uninitialized_memory), and every write is followed.",
    why="Fresh memory is often zero, and the model then runs, with a dead rotary table or bias; on another machine, "
    "or when memory is reused, it is anything. torch.empty, meta tensors after to_empty() and skip_init allocate "
    "without writing, and buffers are the ones that init functions forget.",
    example="`register_buffer('inv_freq', ...)` in __init__ under torch.device('meta'), then to_empty(device='cpu') "
    "and reset_parameters(): the parameters are drawn, the buffer is not.",
    instead="Write buffers in the same method as parameters, and call it after to_empty(). A cache that forward fills "
    "before it reads it: torch.zeros, or ignore this rule.",
    references=("PyTorch documentation, torch.utils.deterministic.fill_uninitialized_memory",),
    check=_unwritten,
    on_trained=True,
)

RESCALED = Rule(
    id="INIT008",
    name="init-not-idempotent",
    severity="error",
    what="The module's own init (init_weights, initialize_weights, reset_parameters, init_parameters or "
    "_init_weights), called once more on a copy without memory, multiplies a parameter that it has not drawn afresh.",
    why="Init runs more often than one thinks: in the constructor and in the training script, after to_empty(), by a "
    "wrapper that shards the model. Every call scales such a parameter again; the loss does not see it.",
    example="`def init_weights(self): ...; self.out.weight.data.mul_(0.204)`, where out.weight was drawn in the "
    "constructor: 0.02, 0.00408, 0.000833, ...",
    instead="Draw with the final std in one call: `nn.init.normal_(w, std=0.02 / math.sqrt(2 * n_layers))`.",
    references=(),
    check=_rescaled,
)

UNTOUCHED = Rule(
    id="INIT009",
    name="untouched-by-init",
    severity="warning; info where the init function wrote fewer than half of the matrices, or left out biases only",
    what="The code that built the module wrote over matrices that constructors of torch.nn had drawn, and left these "
    "as they were. Constants (gains of norms, zero biases) are not counted, nor models whose init is all PyTorch's.",
    why="An init function goes by type or name, and what it doesn't match keeps PyTorch's default: N(1) for an "
    "embedding, U(1/√fan_in) for a linear layer, Xavier for nn.MultiheadAttention. It warns, since the "
    "default may be meant; a function that writes a few matrices only is taken at its word.",
    example="`if isinstance(module, nn.Linear): normal_(module.weight, std=0.02)` in a model with "
    "nn.MultiheadAttention: its in_proj_weight belongs to no nn.Linear.",
    instead="A branch for every type that has weights; in the end, an else that raises.",
    references=(),
    check=_untouched,
)

TIE = Rule(
    id="TIE001",
    name="tie-flag-not-storage",
    severity="error; warning where the flag says untied and storage is shared",
    what="The flag (config.tie_word_embeddings, or a bool of the module or its config that is named so) and the "
    "storage of head and embedding disagree.",
    why="Tying is an assignment, and whatever makes new tensors afterwards undoes it: to_empty() of a meta model, "
    "load_state_dict(assign=True), a replaced embedding. The head is then a matrix of its own, often one that "
    "nothing draws, with V·d_model parameters more than planned.",
    example="`model.head.weight = model.embed.weight` under torch.device('meta'), then model.to_empty(device='cpu').",
    instead="Tie after the tensors are real: `model.head.weight = model.embed.weight` as the last line of init.",
    references=(),
    check=_tie,
    on_trained=True,
)
