"""Hugging Face configs of families that are known here, as architectures of the reference Transformer. No torch.

What each family computes was read in transformers 5.24.0; the pairs of configs in tests/parity have the same logits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from initdiag.model import Architecture
from initdiag.subjects.translation_early import EARLY
from initdiag.subjects.translation_fields import VariantError, absent
from initdiag.subjects.translation_recent import RECENT

FAMILIES = {**EARLY, **RECENT}  # by model_type


def architecture_of(config: Mapping[str, Any]) -> Architecture | None:
    """Return the architecture that a Hugging Face config describes; None where that is not known for certain.

    Args:
        config: `PretrainedConfig.to_dict()`; of a composite config that of its text part.
    """
    family = FAMILIES.get(str(config.get("model_type")))
    if family is None:
        return None
    try:
        absent(config, "is_encoder_decoder", "add_cross_attention", "per_layer_config")
        return Architecture.model_validate(family(config))
    except (VariantError, ValidationError):
        return None
