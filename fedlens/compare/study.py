"""A study: one TOML file, parsed once into frozen models, with errors that name the key.

Beside the keys of the models below, a study takes a task's settings (`rounds`, `epochs`, `codec` ...) for all methods,
and each table `[methods.<label>]` takes them for one method. `docs/compare.md` describes all keys. `[reduced]` holds
the changes for the reduced size. `base` names a preset, whose values hold where the file has none. `[variants.<name>]`
holds settings of a variant: every method runs in each variant as `<label>.<name>`, except methods with
`variants = false`.
"""

import json
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedlens.compare.columns import COLUMNS, Column
from fedlens.errors import FedlensError
from fedlens.sources import NAMES
from fedlens_edge_client.emulation.faults import FaultPlan
from fedlens_edge_client.emulation.partitions import SETTINGS, BadPartition, Partition, PartitionName
from fedlens_edge_client.emulation.settings_errors import explain, nearest
from fedlens_server.errors import Malformed
from fedlens_server.methods import bundle_settings
from fedlens_server.planning.bundle_settings import BundleSettings
from fedlens_server.planning.task_settings import TaskSettings, parse

MAX_SEED = (1 << 32) - 1
_PRESETS = "presets"
# The study determines these settings of a task.
_NOT_SET = ("method", "population", "seed", "selection")
TASK_KEYS = tuple(sorted(TaskSettings.model_fields.keys() - set(_NOT_SET)))
_INSTEAD = {"epochs": "steps", "steps": "epochs"}
_SOURCE = f"the path of a folder, or one of {', '.join(NAMES)}"
_CLIENTS = "an integer from 1 to 100000"
_MODELS = 'a list of names of models, such as ["lenet5"]'
_SEEDS = f"a list of integers from 0 to {MAX_SEED}, each once, such as [1, 2]"


class StudyError(FedlensError):
    """A study cannot be used; the text names the key, what was found and what is allowed."""


def _key(allowed: str, **settings: Any) -> Any:
    return Field(description=allowed, **settings)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class PhotosSection(_Section):
    """`[photos]`: the photos of clients, evaluator and pre-training, and those that all clients get."""

    source: str | None = _key(_SOURCE, default=None, min_length=1)
    train_per_class: int | None = _key("an integer from 1, or left out for all", default=None, ge=1)
    test_per_class: int | None = _key("an integer from 1, or left out for all", default=None, ge=1)
    pretrain_classes: int = _key("an integer from 0", default=0, ge=0)
    pretrain_per_class: int | None = _key("an integer from 1, or left out for all", default=None, ge=1)
    public_per_class: int = _key("an integer from 0", default=0, ge=0)


class _WithSettings(BaseModel):
    """A table with keys of its own and further settings."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, validate_default=True)

    @property
    def settings(self) -> dict[str, Any]:
        """The further settings."""
        return dict(self.__pydantic_extra__ or {})


class PartitionSection(_WithSettings):
    """`[partition]`: its name and that partition's own settings."""

    name: PartitionName = _key(f"one of {', '.join(PartitionName)}", strict=False)

    def partition(self, seed: int, clients: int) -> Partition:
        """The partition for one seed.

        Raises:
            BadPartition: A setting belongs to another partition, or is out of its range.
        """
        for key, value in self.settings.items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise BadPartition(f"{key} of partition {self.name} is {value!r}; allowed is a number")
        return Partition.of(self.name, self.settings, seed=seed, clients=clients)


class ModelSection(_Section):
    """`[model]`: models, heads and their training."""

    names: tuple[str, ...] = _key(_MODELS, min_length=1, strict=False)
    input_size: int | None = _key("pixels, an integer from 1", default=None, ge=1)
    batch: int = _key("an integer from 1", default=32, ge=1)
    optimiser: str = _key('"sgd" or "adam"', default="sgd")
    head: Literal["linear", "hidden"] | None = _key('"linear" or "hidden"', default=None)
    backbone_weights: Path | None = _key("the path of a file", default=None, strict=False)
    pretrain_epochs: int = _key("an integer from 1", default=5, ge=1)
    augmentation: str | None = _key('"crop-flip" or "contrast"', default=None)
    stored_views: int = _key("an integer from 1", default=8, ge=1)


class MethodSection(_WithSettings):
    """`[methods.<label>]`: one row of the results, and its task's settings."""

    method: str = _key("the name of a method", min_length=1)
    objective: str | None = _key("the name of an objective", default=None, min_length=1)
    optimiser: str | None = _key('"sgd" or "adam"', default=None)
    head: Literal["linear", "hidden"] | None = _key('"linear" or "hidden"', default=None)
    augmentation: str | None = _key('"crop-flip" or "contrast"', default=None)
    clients: int | None = _key(_CLIENTS, default=None, ge=1, le=100_000)
    partition: PartitionSection | None = _key("a table, as [partition]", default=None)
    models: tuple[str, ...] | None = _key(_MODELS, default=None, min_length=1, strict=False)
    concatenated: int = _key("the maximum number of concatenated extractors, an integer from 0", default=0, ge=0)
    onnx: bool = _key("true or false", default=False)
    candidates: int | None = _key("the number of models that clients compare, an integer from 0", default=None, ge=0)
    programs: tuple[str, ...] | None = _key("names of further programs", default=None, strict=False)
    public: bool | None = _key("true or false", default=None)
    published: dict[Column, float] = _key(
        f"percentages by column, out of {', '.join(COLUMNS)}", default={}, strict=False
    )


class Study(_WithSettings):
    """A whole study, and the settings of all its tasks."""

    name: str = _key("letters, digits, - and _", pattern=r"^[A-Za-z0-9_-]{1,60}$")
    title: str = _key("a text", default="")
    paper: str = _key("a text", default="")
    paper_columns: tuple[Column, ...] = _key(f"columns out of {', '.join(COLUMNS)}", default=(), strict=False)
    clients: int = _key(_CLIENTS, ge=1, le=100_000)
    seeds: tuple[int, ...] = _key(_SEEDS, min_length=1, strict=False)
    photos: PhotosSection = _key("a table, [photos]")
    partition: PartitionSection = _key("a table, [partition]")
    model: ModelSection = _key("a table, [model]")
    evaluator: bool = _key("true or false", default=True)
    baseline: str | None = _key("the label of a method", default=None)
    faults: FaultPlan = _key("a fault plan", default=FaultPlan())
    methods: dict[str, MethodSection] = _key("tables, [methods.<label>], one or more", min_length=1)

    @model_validator(mode="after")
    def _seeds_and_labels(self) -> Self:
        wrong = [seed for seed in self.seeds if not 0 <= seed <= MAX_SEED or self.seeds.count(seed) > 1]
        if wrong:
            raise ValueError(f"seeds: found {wrong[0]}, must be {_SEEDS}")
        for label in self.methods:
            if not label or len(label) > 60 or not label.replace("-", "").replace("_", "").replace(".", "").isalnum():
                raise ValueError(f"methods: found label {label!r}, must be letters, digits, -, _ and .")
        if self.baseline is not None and self.baseline not in self.methods:
            raise ValueError(f"baseline: found {self.baseline!r}, must be one of {', '.join(self.methods)}")
        return self

    def task_settings(self, label: str, seed: int) -> str:
        """The settings of one method's task, as JSON.

        Raises:
            StudyError: The round engine would refuse one.
        """
        own = self.methods[label]
        base = {key: value for key, value in self.settings.items() if _INSTEAD.get(key) not in own.settings}
        if own.clients is not None:
            base.pop("cohort", None)  # it counts other clients
        merged = {"confusion": True, "personal_evaluation": True, **base, **own.settings}
        merged.setdefault("personal_fine_tuning", merged["personal_evaluation"])
        for key in ("hyper", "options"):
            if isinstance(self.settings.get(key), dict) and isinstance(own.settings.get(key), dict):
                merged[key] = {**self.settings[key], **own.settings[key]}
        merged |= {"method": own.method, "population": self.clients_of(label), "seed": task_seed(seed)}
        text = json.dumps(merged, sort_keys=True, default=str)
        try:
            bundle_settings(parse(text))
        except Malformed as error:
            raise StudyError(f"methods.{label}: {str(error).removeprefix('task settings: ')}") from error
        return text

    def bundles_of(self, label: str) -> BundleSettings:
        """The settings of one method's bundles: its own, else those that the method needs."""
        own = self.methods[label]
        given = {name: getattr(own, name) for name in ("objective", "candidates", "programs", "public")}
        found = {name: value for name, value in given.items() if value is not None}
        return replace(bundle_settings(parse(self.task_settings(label, self.seeds[0]))), **found)

    def clients_of(self, label: str) -> int:
        """The number of clients in one method's runs."""
        return self.methods[label].clients or self.clients

    def partition_of(self, label: str, seed: int) -> Partition:
        """The partition of one method's runs: its own, else the study's.

        Raises:
            StudyError: A setting belongs to another partition, or is out of its range.
        """
        own = self.methods[label].partition
        try:
            return (own or self.partition).partition(seed, self.clients_of(label))
        except BadPartition as error:
            where = "" if own is None else f"methods.{label}."
            raise StudyError(f"{where}partition: {error}") from error

    def models_of(self, label: str) -> tuple[str, ...]:
        """One method's models; client i has the i-th, cyclically."""
        return self.methods[label].models or self.model.names


def task_seed(seed: int) -> str:
    """The task's seed for a study's seed, 64 hexadecimal digits."""
    return sha256(b"fedlens/study/task/v1" + seed.to_bytes(8, "little")).hexdigest()


def presets() -> tuple[str, ...]:
    """The names of FedLens' own studies."""
    folder = resources.files("fedlens.compare").joinpath(_PRESETS)
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load(study: str, *, reduced: bool = False, changes: Sequence[tuple[str, Any]] = ()) -> Study:
    """Read a preset by its name, or a file by its path; relative paths in a file start at its folder.

    Args:
        study: The name or the path.
        reduced: Return the reduced size.
        changes: Other values, by key with a dot after each table's name; each replaces that of the chosen size.

    Raises:
        StudyError: There is no such study, it is not TOML, or a key is missing, unknown or out of range.
    """
    if study in presets():
        return parse_study(_preset(study), Path(), study, reduced=reduced, changes=changes)
    path = Path(study)
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise StudyError(
            f"{study}: there is no such file, and no preset of that name; presets are {', '.join(presets())}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{path.name}: not valid TOML: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"{study}: cannot be read: {error}") from error
    return parse_study(raw, path.parent, path.name, reduced=reduced, changes=changes)


def _preset(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files("fedlens.compare").joinpath(_PRESETS, f"{name}.toml").read_text("utf-8"))


def parse_study(
    raw: dict[str, Any], folder: Path, source: str, *, reduced: bool = False, changes: Sequence[tuple[str, Any]] = ()
) -> Study:
    """Check both sizes of a study; returns the full or the reduced one, with changes as in `load`.

    Raises:
        StudyError: As `load`.
    """
    full = dict(raw)
    if (base := full.pop("base", None)) is not None:
        if base not in presets():
            raise StudyError(f"{source}: base: found {base!r}, must be a preset: {', '.join(presets())}")
        preset = _preset(base)
        if "partition" in (inherited := preset.get("reduced", {})):
            inherited["partition"] = _fitting(inherited["partition"], full.get("partition"))
        full = _merged(preset, full)
    smaller = full.pop("reduced", None)
    sizes = [(full, source)]
    if smaller is None:
        if reduced:
            raise StudyError(f"{source}: reduced: found nothing, must be a table, [reduced], for the reduced size")
    elif not isinstance(smaller, dict):
        raise StudyError(f"{source}: reduced: found {smaller!r}, must be a table, [reduced]")
    else:
        sizes.append((_merged(full, smaller), f"{source} with [reduced]"))
    checked = [_validated(size, folder, name) for size, name in sizes]
    if not changes:
        return checked[reduced]
    changed, _ = sizes[reduced]
    # Names of partitions first: they drop settings that are inherited, not those that are asked for beside them.
    for key, value in sorted(changes, key=lambda change: not change[0].endswith("partition.name")):
        *tables, last = key.split(".")
        nested = {last: value}
        for table in reversed(tables):
            nested = {table: nested}
        changed = _merged(changed, nested)
    return _validated(changed, folder, f"{source} with --set")


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in base.items() if _INSTEAD.get(key) not in changes}
    return kept | {
        key: _merged(_fitting(kept[key], value) if key == "partition" else kept[key], value)
        if isinstance(value, dict) and isinstance(kept.get(key), dict)
        else value
        for key, value in changes.items()
    }


def _fitting(partition: Any, change: Any) -> Any:
    """Of an inherited partition what one that a change names has, too."""
    name = change.get("name") if isinstance(change, dict) else None
    known = next((keys for each, keys in SETTINGS.items() if each == name), None)
    if known is None or not isinstance(partition, dict):
        return partition
    return {key: value for key, value in partition.items() if key in known}


def _varied(raw: dict[str, Any], source: str) -> dict[str, Any]:
    """The study with a method for each method and variant, without `[variants]`."""
    variants, methods = raw.get("variants"), raw.get("methods")
    if variants is None or not isinstance(methods, dict):
        return raw
    if not isinstance(variants, dict) or not all(isinstance(table, dict) for table in variants.values()):
        raise StudyError(f"{source}: variants: found {variants!r}, must be tables, [variants.<name>]")
    varied: dict[str, Any] = {}
    for label, method in methods.items():
        plain = dict(method) if isinstance(method, dict) else {"variants": False}
        wanted = plain.pop("variants", True)
        if not isinstance(wanted, bool):
            raise StudyError(f"{source}: methods.{label}.variants: found {wanted!r}, must be true or false")
        if wanted:
            varied |= {f"{label}.{name}": _merged(table, plain) for name, table in variants.items()}
        else:
            varied[label] = plain if isinstance(method, dict) else method
    return {key: value for key, value in raw.items() if key != "variants"} | {"methods": varied}


def _validated(raw: dict[str, Any], folder: Path, source: str) -> Study:
    try:
        study = Study.model_validate(_varied(raw, source))
    except ValidationError as error:
        raise StudyError(f"{source}: {explain(error, Study)}") from error
    for where, table in (("", study), *((f"methods.{name}.", entry) for name, entry in study.methods.items())):
        for key in table.settings:
            if key not in TASK_KEYS:
                known = [*TASK_KEYS, *(Study if not where else MethodSection).model_fields]
                raise StudyError(f"{source}: {where}{key}: unknown key; {nearest(key, known)}")
    try:
        for label in study.methods:
            study.partition_of(label, study.seeds[0])
            study.task_settings(label, study.seeds[0])
    except StudyError as error:
        raise StudyError(f"{source}: {error}") from error
    return _with_paths(study, folder)


def _with_paths(study: Study, folder: Path) -> Study:
    photos, model = study.photos, study.model
    if photos.source is not None and photos.source not in NAMES:
        photos = photos.model_copy(update={"source": str(folder / Path(photos.source).expanduser())})
    if model.backbone_weights is not None:
        model = model.model_copy(update={"backbone_weights": folder / model.backbone_weights.expanduser()})
    return study.model_copy(update={"photos": photos, "model": model})


def with_baseline(study: Study, baseline: str) -> Study:
    """The study with a method as its baseline.

    Raises:
        StudyError: The study has no such method.
    """
    if baseline not in study.methods:
        raise StudyError(f"--baseline: found {baseline!r}, must be one of {', '.join(study.methods)}")
    return study.model_copy(update={"baseline": baseline})


def choose(
    study: Study,
    *,
    methods: tuple[str, ...] = (),
    seeds: tuple[int, ...] = (),
    photos: str | None = None,
    baseline: str | None = None,
) -> Study:
    """The study with some of its methods, other seeds, other photos, or another baseline.

    Raises:
        StudyError: The study has no such method, a seed is repeated, or there are no photos.
    """
    for label in methods:
        if label not in study.methods:
            raise StudyError(f"--method: found {label!r}, must be one of {', '.join(study.methods)}")
    if twice := [seed for seed in seeds if seeds.count(seed) > 1]:
        raise StudyError(f"--seed: found {twice[0]} more than once, must be each seed once")
    if study.photos.source is None and photos is None:
        raise StudyError(f"photos.source: found nothing, must be {_SOURCE}; give it as --photos DIR")
    changes: dict[str, Any] = {}
    if methods:
        changes["methods"] = {label: study.methods[label] for label in study.methods if label in methods}
        if study.baseline not in methods:
            changes["baseline"] = None
    if seeds:
        changes["seeds"] = seeds
    if photos is not None:
        changes["photos"] = study.photos.model_copy(update={"source": photos})
    chosen = study.model_copy(update=changes)
    return chosen if baseline is None else with_baseline(chosen, baseline)
