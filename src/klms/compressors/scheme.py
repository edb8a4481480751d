"""The description of a scheme: command line, benches, methods, Flower and reports derive everything from it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from klms.compressors.base import Compressor
from klms.compressors.layout import Layout
from klms.errors import InvalidArgument
from klms.numerics.checks import suggestion

Needs = Mapping[str, Mapping[str, object]]
"""For each setting that depends on other settings: these others by name, with the values that they must have."""


class Settings(BaseModel):
    """Settings of a scheme or a method: the only place for defaults, bounds and descriptions of settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    needs: ClassVar[Needs] = {}
    """Settings that have an effect only while other settings have certain values."""

    @classmethod
    def checked(cls, values: Mapping[str, object]) -> Self:
        """Return the settings with these values; raise an `InvalidArgument` that names every invalid value."""
        for name in values:
            if name not in cls.model_fields:
                raise InvalidArgument(f"there is no setting {name!r}; {suggestion(name, cls.model_fields)}")
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise InvalidArgument(reasons(error)) from error


def without_effect(needs: Needs, name: str, settings: Settings) -> str:
    """Return why a setting has no effect given the values of the others; an empty string if it has an effect."""
    for other, wanted in needs.get(name, {}).items():
        value = getattr(settings, other)
        if value != wanted and wanted:
            return f"{name} needs {other} {wanted}, not {value}, and would have no effect"
        if value != wanted:
            return f"{name} would have no effect, because {other} is {value}: omit one of them"
    return ""


def reasons(error: ValidationError) -> str:
    """Return one line that says what is wrong with each invalid setting."""
    return "; ".join(map(_reason, error.errors()))


_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}  # pydantic's names of bounds
_KINDS = {  # and the first words of its names of other errors
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
}
_LONGEST = 80  # characters of a value that are shown


def _reason(one: ErrorDetails) -> str:
    """Explain one error, in klms's own words if there are any, otherwise in pydantic's."""
    name, context = ".".join(map(str, one["loc"])), one.get("ctx", {})
    bounds = [f"{word} {shown(context[bound])}" for bound, word in _BOUNDS.items() if bound in context]
    if bounds:
        wanted = bounds[0]
    elif one["type"] == "literal_error":
        wanted = str(context["expected"]).replace("'", "")
    elif one["type"].partition("_")[0] in _KINDS:
        wanted = _KINDS[one["type"].partition("_")[0]]
    else:
        text = one["msg"].removeprefix("Value error, ")  # pydantic's prefix to messages of our validators
        return f"{name}: {text}" if one["loc"] else text
    return f"{name} must be {wanted}, got {str(one['input'])[:_LONGEST]}"


def shown(bound: float) -> str:
    """Return a bound of a setting as people write it, large powers of two as powers.

    >>> shown(2**63), shown(1.0), shown(0.0001)
    ('2^63', '1', '0.0001')
    """
    if isinstance(bound, int) and bound > 2**17 and bound.bit_count() == 1:
        return f"2^{bound.bit_length() - 1}"
    return f"{bound:g}"


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Scheme(Generic[S]):
    """A way to turn updates, or masks, into bytes."""

    name: str
    title: str
    reference: str
    settings: type[S]
    make: Callable[[Layout, S, int | None], Compressor]  # the last argument is the number of threads
    family: str = ""  # schemes of one family share a colour in reports; by default, each is its own family
    wire_number: int | None = None  # number in the envelope; None for schemes whose messages are the codec's own
    codes: Literal["updates", "masks"] = "updates"
    unbiased: Callable[[S], bool] = lambda settings: True  # whether the mean of the decoded update is the update
    default_step: float | None = None  # the server's step size, for messages that carry no magnitudes
    needs_error_feedback: bool = False  # whether clients must add to their next update what a message left out
    needs_side_information: bool = False  # whether server and clients share more than the model and the key
    operating_points: tuple[Mapping[str, Any], ...] = ({},)
    """Settings at which `klms bench mean` measures the scheme; empty if the scheme's error has no meaning there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "family", self.family or self.name)

    @property
    def directions_only(self) -> bool:
        """Whether messages carry no magnitudes, so that the server must choose a step size."""
        return self.default_step is not None

    @property
    def takes_rate(self) -> bool:
        return "rate" in self.settings.model_fields

    @property
    def max_rate(self) -> float:
        """Highest rate in bits per parameter, for a scheme whose rate can be set."""
        return next(float(bound.le) for bound in self.settings.model_fields["rate"].metadata if hasattr(bound, "le"))

    def create(self, layout: Layout, values: Mapping[str, object], threads: int | None = None) -> Compressor:
        """Build the compressor from settings by name; settings that are not given have their default values."""
        return self.make(layout, self.settings.checked(values), threads)
