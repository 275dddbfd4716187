"""The JSON schema of config files, by which editors complete and check them."""

from __future__ import annotations

import json
from typing import Any

from initdiag.config.schema import Config
from initdiag.schemes import SCHEMES


def json_schema() -> dict[str, Any]:
    """Return the schema, in JSON Schema 2020-12."""
    schema = Config.model_json_schema()
    schema["$defs"]["Init"]["properties"]["scheme"]["enum"] = list(SCHEMES)  # the schema itself doesn't know the table
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:initdiag:config",
        **schema,
        "title": "initdiag config",
    }


def text() -> str:
    """Return the schema as the text of configs/initdiag.schema.json."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
