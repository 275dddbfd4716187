"""The JSON schema of config files, by which editors complete and check them."""

from __future__ import annotations

import json
from typing import Any

from initdiag.config.schema import Config
from initdiag.config.scheme_fields import WORDS
from initdiag.schemes import CUSTOM, SCHEMES


def json_schema() -> dict[str, Any]:
    """Return the schema, in JSON Schema 2020-12."""
    schema = Config.model_json_schema()
    init = schema["$defs"]["Init"]  # which doesn't know the table of schemes
    init["properties"]["scheme"]["enum"] = [
        *SCHEMES,
        *(alias for scheme in SCHEMES.values() for alias in scheme.aliases),
        CUSTOM.name,
    ]
    for name in WORDS:
        words = dict.fromkeys(word for scheme in SCHEMES.values() for word in scheme.choices.get(name, ()))
        init["properties"][name]["enum"] = [*words, None]
    init["additionalProperties"] = False  # parameters of other distributions' schemes are known where those are
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:initdiag:config",
        **schema,
        "title": "initdiag config",
    }


def text() -> str:
    """Return the schema as the text of configs/initdiag.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
