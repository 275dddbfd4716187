"""The use case `vary`: one value of a config, varied, and how every predicted number goes with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from initdiag.case import Case
from initdiag.errors import ConfigError, UsageError, require_type
from initdiag.predict import case_of, predicted
from initdiag.request import Path, Progress, Request

if TYPE_CHECKING:
    from initdiag.config import ConfigFile
    from initdiag.report.varied import Varied

SCHEME = ("init", "scheme")


def vary(
    target: Any,
    key: str,
    values: Sequence[Any],
    *,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    text: Path | None = None,
    tokens: Path | None = None,
    tokenizer: Path | None = None,
    backward: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Varied:
    """Predict a config with each of several values of one key.

    Args:
        key: a path such as "init.std"; a bare name is looked up in model, then init, then tokens. With d_model, other
            sizes go as in a family of models: see `initdiag.config.varied.followers`.
        values: two or more, each once. Of positive numbers, the growth of every predicted number is fitted.

    Other arguments and errors are those of `predict`. All configs are prepared before the first is predicted.
    """
    from initdiag.config.varied import followers, path_of
    from initdiag.report.varied import Varied

    request = Request(
        scheme=scheme,
        seed=seed,
        overrides=overrides,
        text=text,
        tokens=tokens,
        tokenizer=tokenizer,
        backward=backward,
        kwargs=kwargs if kwargs is not None else {},
        trust_remote_code=trust_remote_code,
    )
    require_type("key", key, (str,), 'a key such as "n_layers" or "init.std"')
    file = _base(target, request)
    path, values = path_of(key, file), _different(key, values)
    for at, option in file.options.items():
        if path[: len(at)] == at or at[: len(path)] == path:
            raise UsageError(f"{option}: {'.'.join(path)} is varied; expected either of the two")
    followed = [followers(file, path, value) for value in values]
    cases = [_case(target, request, key, path, value, also) for value, also in zip(values, followed, strict=True)]
    runs = [predicted(case, request, progress, f"{key} {value}: ") for case, value in zip(cases, values, strict=True)]
    return Varied(".".join(path), tuple(values), tuple(runs), tuple(_told(followed)), command)


def _base(target: Any, request: Request) -> ConfigFile:
    from initdiag.config import ConfigFile

    if isinstance(target, ConfigFile):
        raise UsageError(f"{target.name}: it is loaded already; expected the name of a config, or a mapping, to vary")
    return case_of(target, request).file


def _different(key: str, values: Sequence[Any]) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{key}: found {values!r}, expected a list of values, such as [6, 12, 24]")
    values = [value.item() if hasattr(value, "item") else value for value in values]  # numbers of numpy
    if len(values) < 2:
        found = f"only {values[0]!r}" if values else "no value"
        raise UsageError(f"--vary {key}: found {found}, expected two values or more, such as n_layers=6,12,24")
    for i, value in enumerate(values):
        if any(value == other and type(value) is type(other) for other in values[:i]):
            raise UsageError(f"--vary {key}: {value!r} is there twice; expected each value once")
    return values


def _case(
    target: Any, request: Request, key: str, path: Sequence[str], value: Any, followed: Mapping[str, int]
) -> Case:
    """Prepare one case; what is wrong with its value is said of --vary, which set it."""
    from initdiag.config.varied import written

    if tuple(path) == SCHEME and isinstance(value, str):
        return case_of(target, replace(request, scheme=value))
    own = [f"{'.'.join(path)}={written(value)}", *(f"{name}={size}" for name, size in followed.items())]
    try:
        return case_of(target, replace(request, overrides=(*request.overrides, *own)))
    except ConfigError as error:
        raise ConfigError(
            replace(problem, path=_renamed(problem.path, own, f"--vary {key}={written(value)}"))
            for problem in error.problems
        ) from error


def _renamed(path: str, overrides: Sequence[str], option: str) -> str:
    for override in overrides:
        if path.startswith(f"--set {override}"):
            rest = path.removeprefix(f"--set {override}")
            return option + ("" if override == overrides[0] else f": {override.partition('=')[0]}") + rest
    return path


def _told(followed: Sequence[Mapping[str, int]]) -> Iterable[str]:
    """Say of each size that goes with the varied one what it is: 'head_dim stays 64', 'n_heads 4, 8, 16'."""
    for path in followed[0]:
        sizes = [one[path] for one in followed]
        name = path.removeprefix("model.")
        if name == "n_kv_heads" and sizes == [one.get("model.n_heads") for one in followed]:
            continue  # no grouped queries: there is one number of heads
        alike = len(set(sizes)) == 1
        yield f"{name} stays {sizes[0]}" if alike else f"{name} {', '.join(map(str, sizes))}"
