"""Whether a model is fresh: rules about init say nothing of a trained one."""

from __future__ import annotations

from collections.abc import Iterator

from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import Role

PRIOR = 0.5  # std of a head bias, in nats: word frequencies have 1 to 3, nn.Linear's own bias less than 0.1
VARIED = 1e-3  # std of a gain over its features: inits fill gains with one number, a hundred steps of Adam move them
# by 1e-2 and more


def head_prior(evidence: Evidence) -> bool:
    """Whether the head has a bias that holds word frequencies. It is meant to make random tokens expensive, and can be
    judged on real text alone, where it makes the loss smaller."""
    bias = evidence.measured.wiring.head_bias
    return any(parameter.name == bias and parameter.std > PRIOR for parameter in evidence.measured.parameters)


def looks_trained(evidence: Evidence) -> bool:
    """Whether most norm gains differ from feature to feature, which no init makes; what we drew ourselves is fresh."""
    if evidence.subject.drawn_by_us:
        return False
    plan = evidence.subject.plan.by_name
    gains = [
        parameter
        for parameter in evidence.measured.parameters
        if parameter.name in plan and plan[parameter.name].parameter.role is Role.NORM_SCALE and parameter.numel > 1
    ]
    return bool(gains) and sum(gain.std > VARIED for gain in gains) * 2 > len(gains)


def _trained(evidence: Evidence) -> Iterator[Trouble]:
    if looks_trained(evidence):
        yield Trouble(
            "the gains of most norms differ from feature to feature: these are no fresh weights, and the rules about "
            "init were not asked",
            "weights",
            "check the model before the first optimizer step, and before a checkpoint is loaded",
            "init.scheme",
            Severity.INFO,
        )


TRAINED = Rule(
    id="INIT010",
    name="looks-trained",
    severity="info; rules about init are silent then",
    what="Most norm gains are not one number each.",
    why="Residual streams grow, heads get hot and tokens get alike in training; none of it is a fault of init. A line "
    "that loads a checkpoint where a fresh start was meant is found by LOSS002.",
    example="`initdiag.check(model)` after `model.load_state_dict(...)`.",
    instead="Check the model as it was built.",
    references=(),
    check=_trained,
    on_trained=True,
)
