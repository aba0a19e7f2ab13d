"""The settings of a task: a JSON object from the operator."""

import difflib
import json
import shlex
from collections.abc import Iterable
from fractions import Fraction
from math import floor
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    model_validator,
)

from fedlens_proto.v1 import assignment_pb2, manifest_pb2
from fedlens_server.errors import Malformed

MAX_SETTINGS_BYTES = 64 << 10
MAX_COUNT = 1 << 48  # far above any count of photos; sums fit SQLite's 64-bit integers
_CODECS = {
    "f32": assignment_pb2.CODEC_FLOAT32,
    "f16": assignment_pb2.CODEC_FLOAT16,
    "int8": assignment_pb2.CODEC_INT8,
}

Count = Annotated[StrictInt, Field(ge=1, le=1_000_000)]
Number = StrictInt | StrictFloat
Seconds = Annotated[Number, Field(gt=0, le=10_000_000)]
_SECONDS = "seconds, above 0, at most 10000000"
CodecName = Literal["f32", "f16", "int8"]


class SettingsError(Malformed):
    """A setting that is not allowed; the text names the key, the value found and the allowed values."""

    def __init__(self, key: str, found: object, allowed: str) -> None:
        """`key` as the operator wrote it."""
        super().__init__(f"task settings: {key}: found {found}, must be {allowed}")


_ONLY = {
    "drawn": ("population", "cohort", "download_difference"),
    "arrivals": (
        *("goal", "over_selection", "member_deadline_s", "max_failures"),
        *("rest", "patience_s", "presence_s", "eligible", "canary"),
    ),
}
"""The settings that belong to one selection and are refused with the other."""


_TABLES = ("dp", "eligible", "hyper", "options")
_ON = ("exclude", "clip", "cap")
"""The rules about updates that are on in a task that selects by arrival."""


class Eligible(BaseModel):
    """The least that a client must have to get a place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    num_examples: Annotated[StrictInt, Field(ge=0, le=MAX_COUNT)] = 1
    client_version: Annotated[StrictInt, Field(ge=0, le=2**32 - 1)] = 0


class CentralPrivacy(BaseModel):
    """Clipping and noise of a round's sum, and the delta at which its epsilon is told."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    clip: Annotated[Number, Field(gt=0, le=1e9)]
    noise: Annotated[Number, Field(ge=0.001, le=1e6)]
    delta: Annotated[Number, Field(ge=1e-12, le=0.5)] = 1e-6


class TaskSettings(BaseModel):
    """The settings of a task; its bundles are separate."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    method: StrictStr = Field(description="name of a method")
    rounds: Count = Field(description="a whole number, 1 to 1000000 (rounds to commit)")
    selection: Literal["drawn", "arrivals"] = Field(default="drawn", description='"drawn" or "arrivals"')
    population: Count | None = Field(default=None, description="a whole number, 1 to 1000000 (trainers to wait for)")
    cohort: Literal["all"] | Count = Field(
        default="all", description='"all", or a whole number, 1 to 1000000 (clients a round)'
    )
    goal: Count | None = Field(default=None, description="a whole number, 1 to 1000000 (updates that a round wants)")
    over_selection: Annotated[Number, Field(ge=1, le=10)] | None = Field(
        default=None, description="a number from 1 to 10"
    )
    canary: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = Field(
        default=3, description="a whole number, 0 to 1000000 (clients)"
    )
    member_deadline_s: Seconds = Field(default=600.0, description=_SECONDS)
    max_failures: Count | None = Field(
        default=None, description="a whole number, 1 or more (members that fail or are quarantined)"
    )
    rest: Literal["fair"] | Annotated[StrictInt, Field(ge=0, le=1_000_000)] = Field(
        default="fair", description='"fair", or a whole number, 0 to 1000000 (rounds)'
    )
    patience_s: Annotated[Number, Field(ge=0, le=10_000_000)] | None = Field(
        default=None, description="seconds, at least 0, at most 10000000, or null for as long as a round takes"
    )
    presence_s: Seconds = Field(default=7200.0, description=_SECONDS)
    eligible: Eligible = Field(
        default=Eligible(), description='an object with "num_examples" and "client_version", 0 or more'
    )
    max_participations: Count | None = Field(default=None, description="a whole number, 1 to 1000000 (rounds), or null")
    dp: CentralPrivacy | None = Field(
        default=None,
        description='an object with "clip" above 0, "noise" from 0.001 and "delta" from 1e-12 to 0.5, or null',
    )
    deadline_s: Seconds = Field(default=3600.0, description=_SECONDS)
    min_reports: Count = Field(default=1, description="a whole number, 1 or more (valid updates that a round needs)")
    epochs: Count | None = Field(default=None, description="a whole number, 1 or more (passes over the photos)")
    steps: Count | None = Field(default=None, description="a whole number, 1 or more (batches)")
    hyper: dict[StrictStr, Number] = Field(default={}, description="numbers by name of hyper-parameter")
    codec: CodecName = Field(default="f32", description='"f32", "f16" or "int8"')
    difference: StrictBool = Field(default=False, description="true or false")
    download_codec: CodecName = Field(default="f32", description='"f32", "f16" or "int8"')
    download_difference: StrictBool = Field(default=False, description="true or false")
    confusion: StrictBool = Field(default=False, description="true or false")
    personal_evaluation: StrictBool = Field(default=False, description="true or false")
    personal_fine_tuning: StrictBool = Field(default=False, description="true or false")
    batch_norm: Literal["average", "local_statistics", "local"] = Field(
        default="average", description='"average", "local_statistics" or "local"'
    )
    evaluate_every: Count = Field(
        default=1, description="a whole number, 1 or more (committed rounds between global evaluations)"
    )
    max_consecutive_abandoned: Count = Field(
        default=5, description="a whole number, 1 or more (abandoned rounds in a row)"
    )
    exclude: StrictBool = Field(default=False, description="true or false")
    clip: StrictBool = Field(default=False, description="true or false")
    cap: StrictBool = Field(default=False, description="true or false")
    krum: Annotated[StrictInt, Field(ge=1, le=100_000)] | None = Field(
        default=None, description="a whole number, 1 to 100000 (updates to leave out), or null"
    )
    median: StrictBool = Field(default=False, description="true or false")
    trimmed_mean: Annotated[StrictFloat, Field(gt=0, lt=0.5)] | None = Field(
        default=None, description="a share above 0 and below 0.5, or null"
    )
    pause_if_accuracy_falls: Annotated[Number, Field(gt=0, le=100)] | None = Field(
        default=None, description="percentage points, above 0, at most 100, or null"
    )
    release: Literal["auto", "manual"] = Field(default="auto", description='"auto" or "manual"')
    max_update_norm: Annotated[Number, Field(gt=0)] | None = Field(
        default=None, description="a number above 0, or null"
    )
    max_photos_per_client: Annotated[StrictInt, Field(ge=1, le=MAX_COUNT)] = Field(
        default=1_000_000, description=f"a whole number, 1 to {MAX_COUNT} (photos)"
    )
    seed: Annotated[StrictStr, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default=None, description="64 hexadecimal digits, or left out for a random one"
    )
    options: dict[StrictStr, bool | int | float | str] = Field(default={}, description="the method's own settings")

    @model_validator(mode="before")
    @classmethod
    def _with_defaults_of_arrivals(cls, raw: dict[str, Any]) -> dict[str, Any]:
        if raw.get("selection") != "arrivals":
            return raw
        goal = raw.get("goal")
        least = {"min_reports": -(-goal // 2)} if type(goal) is int and goal > 0 else {}
        return {**least, **({} if raw.get("dp") else dict.fromkeys(_ON, True)), **raw}

    @model_validator(mode="after")
    def _agree(self) -> "TaskSettings":
        other = "arrivals" if self.selection == "drawn" else "drawn"
        if foreign := [name for name in _ONLY[other] if name in self.model_fields_set]:
            found = json.dumps(self.model_dump()[foreign[0]])
            raise SettingsError(foreign[0], found, f'left out with selection "{self.selection}"')
        wanted = "population" if self.selection == "drawn" else "goal"
        if getattr(self, wanted) is None:
            options = "--goal N or --population N" if self.by_arrival else "--population N"
            raise SettingsError(wanted, "nothing", f"{type(self).model_fields[wanted].description}; give {options}")
        if self.epochs is not None and self.steps is not None:
            raise SettingsError("steps", self.steps, "left out when epochs is set")
        if self.personal_fine_tuning and not self.personal_evaluation:
            raise SettingsError("personal_fine_tuning", "true", "false where personal_evaluation is false")
        if self.population is not None and self.cohort != "all" and self.cohort > self.population:
            raise SettingsError("cohort", self.cohort, f"at most the population, {self.population}")
        if self.median and self.trimmed_mean is not None:
            raise SettingsError("trimmed_mean", self.trimmed_mean, "left out with median, which leaves out more")
        if self.krum is not None and self.min_reports < 2 * self.krum + 3:
            allowed = f"at least 2 * krum + 3 = {2 * self.krum + 3}, of which krum can leave out {self.krum}"
            raise SettingsError("min_reports", self.min_reports, allowed)
        if self.dp is not None:
            self._need_privacy()
        members = self.cohort_size or self.population
        if members is not None and self.min_reports > members:
            raise SettingsError("min_reports", self.min_reports, f"at most the clients of a round, {members}")
        return self

    def _need_privacy(self) -> None:
        """Require what the promise of `dp` rests on."""
        if self.max_participations is None:
            raise SettingsError("max_participations", "nothing", "the rounds in which a client takes part, with dp")
        if self.personal_evaluation:
            raise SettingsError("personal_evaluation", "true", "false with dp: no trainer measures anything")
        for name in (*_ON, "krum", "median", "trimmed_mean"):
            if value := getattr(self, name):
                allowed = "off with dp: a rule that looks at other updates tells of them"
                raise SettingsError(name, json.dumps(value), allowed)
        if self.max_update_norm is not None:
            allowed = "left out with dp, which clips every change; whom it leaves out would tell of an update"
            raise SettingsError("max_update_norm", self.max_update_norm, allowed)

    @property
    def by_arrival(self) -> bool:
        """True if a round takes the clients that come, instead of drawing its members from all that have enrolled."""
        return self.selection == "arrivals"

    @property
    def looks_at_norms(self) -> bool:
        """True if a rule needs the norms of uploads."""
        return self.exclude or self.clip

    def left_out(self, count: int) -> int:
        """The number of values that `median` or `trimmed_mean` leaves out at each end of so many; 0: of neither."""
        return (count - 1) // 2 if self.median else floor(Fraction(str(self.trimmed_mean or 0)) * count)

    @property
    def cohort_size(self) -> int | None:
        """Clients per round; None: all."""
        return self.goal if self.by_arrival else None if self.cohort == "all" else self.cohort

    @property
    def wire_codec(self) -> assignment_pb2.Codec:
        """The codec of uploads."""
        return _CODECS[self.codec]

    @property
    def wire_download_codec(self) -> assignment_pb2.Codec:
        """The codec of downloads."""
        return _CODECS[self.download_codec]

    def public_json(self) -> str:
        """The settings with defaults, without the seed and those of another selection, for operators."""
        foreign = _ONLY["drawn" if self.by_arrival else "arrivals"]
        return json.dumps(self.model_dump(exclude={"seed", *foreign}), sort_keys=True)


def parse(text: str) -> TaskSettings:
    """The settings in a JSON object.

    Raises:
        SettingsError: A key is unknown or missing, or a value is not allowed.
        Malformed: The text is no JSON object.
    """
    raw = parse_object(text)
    try:
        return TaskSettings.model_validate(raw)
    except ValidationError as error:
        raise _named(raw, error) from error


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that settings are given in, of which nothing else is checked.

    Raises:
        Malformed: The text is too long or no JSON object.
    """
    if len(text) > MAX_SETTINGS_BYTES:
        raise Malformed(f"task settings: {len(text)} characters, at most {MAX_SETTINGS_BYTES} are allowed")
    try:
        raw = json.loads(text)
        json.dumps(raw, ensure_ascii=False).encode()  # an escaped lone surrogate is JSON, but no text
    except (ValueError, RecursionError) as error:
        raise Malformed(f"task settings: not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise Malformed(f"task settings: found {_short(raw)}, must be a JSON object")
    return raw


def check_hyper_values(settings: TaskSettings, allowed: Iterable[manifest_pb2.HyperParameter]) -> None:
    """Require that each hyper-parameter is one of those of a bundle, and in its range.

    Raises:
        SettingsError: A hyper-parameter is unknown, or its value out of range.
    """
    known = {hyper.name: hyper for hyper in allowed}
    for name, value in settings.hyper.items():
        if name not in known:
            raise SettingsError(f"hyper.{name}", value, f"a hyper-parameter of the bundle: {', '.join(sorted(known))}")
        least, most = known[name].minimum, known[name].maximum
        if not least <= value <= most:
            raise SettingsError(f"hyper.{name}", value, f"from {least:g} to {most:g}")


def unknown(key: str, value: object) -> Malformed:
    """The error about a key that is no setting, with what may have been meant."""
    known = TaskSettings.__pydantic_fields__
    table, _, inner = key.partition(".")
    if inner and table in _TABLES:
        hint = f"give {shlex.quote(f'{table}={_short({inner: value})}')}"
    elif near := difflib.get_close_matches(key, known, n=1):
        hint = f"did you mean {near[0]}?"
    else:
        hint = f"there are {', '.join(sorted(known))}"
    return Malformed(f"task settings: {key}: there is no such setting; {hint}")


def _named(raw: dict[str, Any], error: ValidationError) -> Malformed:
    first = error.errors(include_url=False)[0]
    key = str(first["loc"][0])
    field = TaskSettings.__pydantic_fields__.get(key)
    if field is None:
        return unknown(key, raw.get(key))
    value = raw.get(key)
    if isinstance(value, dict) and len(first["loc"]) > 1:
        inside = first["loc"][1]
        key, value = f"{key}.{inside}", value.get(inside)
    found = "nothing" if first["type"] == "missing" else _short(value)
    return SettingsError(key, found, str(field.description))


def _short(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
