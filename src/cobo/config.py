"""Settings: keyword-only, typed, frozen values whose errors name the field, the value and what is allowed."""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from cobo.errors import ConfigError


class Settings(BaseModel):
    """Base of every group of settings: methods, training, experiments."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=False, allow_inf_nan=False, arbitrary_types_allowed=True
    )

    def __init__(self, **values: Any) -> None:
        """Settings by name; others have their defaults. A wrong one is a `ConfigError` that says what is allowed."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(explain(type(self), error)) from None

    def replace(self, **changes: Any) -> Self:
        """The same settings with some values changed, validated again."""
        return type(self)(**{**self.model_dump(), **changes})


def explain(settings: type[Settings], error: ValidationError) -> str:
    """The first validation error in one line: where, what was given, what is allowed."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if "[" not in str(part)]  # without the kinds of value that were tried
    field = ".".join(place) or settings.__name__
    inside = first.get("ctx", {}).get("error")
    if isinstance(inside, ConfigError):  # of settings within these
        return f"{field}: {inside}"
    if first["type"] == "extra_forbidden":
        allowed = ", ".join(settings.model_fields) or "nothing"
        return f"{settings.__name__} has no setting {field!r}; it has: {allowed}"
    if first["type"] == "missing":
        return f"{settings.__name__} needs a value for {field!r}"
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if first["type"] == "value_error" and not first["loc"]:
        return f"{settings.__name__}: {message}"
    return f"{settings.__name__}: {field} = {first['input']!r} is not allowed; it should be {message}"
