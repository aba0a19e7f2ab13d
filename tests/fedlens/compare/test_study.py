"""A study is checked as a whole before anything of it runs, and what is wrong is named as it is written."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedlens.commands.options import named_value
from fedlens.compare.study import (
    MethodSection,
    ModelSection,
    PhotosSection,
    Study,
    StudyError,
    choose,
    load,
    parse_study,
    presets,
)
from fedlens_server.planning.bundle_settings import BundleSettings
from tests.fedlens.commands.cli import error_text, fedlens
from tests.fedlens.compare.conftest import PAGE, STUDY
from tests.plugin_packages import HALF, METHODS, install


def raw() -> dict[str, Any]:
    return tomllib.loads(STUDY)


def parsed(values: dict[str, Any], *, reduced: bool = False) -> Study:
    return parse_study(values, Path("there"), "small.toml", reduced=reduced)


def changed(key: str, value: Any) -> dict[str, Any]:
    """The small study with one key, such as `photos.source`, set to something else."""
    values = raw()
    *tables, last = key.split("/")
    table = values
    for name in tables:
        table = table.setdefault(name, {})
    table[last] = value
    return values


REDUCED = (
    *("fedns", "fedclassavg", "pfedsim", "fedconcat", "phone"),
    *("fedclassavg-baselines", "pfedsim-baselines", "fedconcat-baselines"),
)


@pytest.mark.parametrize("name", REDUCED)
def test_every_preset_can_be_read_in_both_sizes(name: str) -> None:
    whole, reduced = load(name), load(name, reduced=True)

    assert (whole.name, reduced.name) == (name, name)
    assert len(whole.seeds) >= 3
    assert reduced != whole


def test_there_is_no_preset_of_which_these_tests_do_not_know() -> None:
    assert set(presets()) == {*REDUCED, "people"}
    assert (load("people").name, len(load("people").seeds) >= 3) == ("people", True)


def test_a_study_without_photos_of_its_own_takes_those_of_the_command_line_or_says_so() -> None:
    people = load("people")

    assert choose(people, methods=(), seeds=(), photos="mine").photos.source == "mine"
    with pytest.raises(StudyError, match=r"photos.source: found nothing, must be the path of a folder.*--photos DIR"):
        choose(people, methods=(), seeds=(), photos=None)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("clients", 0, "clients: found 0, must be an integer from 1 to 100000"),
        ("client", 4, "client: unknown key; did you mean clients?"),
        ("seeds", [1, 1], "seeds: found 1, must be a list of integers from 0 to 4294967295, each once, such as [1, 2]"),
        ("seeds", 3, "seeds: found 3, must be a list of integers from 0"),
        ("model/names", "lenet5", "model.names: found 'lenet5', must be a list of names of models, such as"),
        ("rounds", 0, "methods.plain: rounds: found 0, must be a whole number, 1 to 1000000 (rounds to commit)"),
        ("cohort", 5, "cohort: found 5, must be at most the population, 4"),
        ("photos/train_per_class", 0, "photos.train_per_class: found 0, must be an integer from 1, or left out for"),
        ("photos/sauce", "x", "photos.sauce: unknown key; did you mean source?"),
        ("partition/name", "cctv", "partition.name: found 'cctv', must be one of camera-iid"),
        ("partition/beta", 0.5, "'beta' is no setting of partition camera-iid; it has per_class, test_per_class"),
        ("partition/per_class", "many", "per_class of partition camera-iid is 'many'; allowed is a number"),
        ("model/batch", 1.5, "model.batch: found 1.5, must be an integer from 1"),
        (
            "methods/plain/method",
            "fedsgd",
            "methods.plain: method: found 'fedsgd', must be one of ditto, fedap, ",
        ),
        ("methods/plain/objektive", "x", "methods.plain.objektive: unknown key; did you mean objective?"),
        ("methods/plain/clients", 0, "methods.plain.clients: found 0, must be an integer from 1 to 100000"),
        ("methods/plain/head", "deep", 'methods.plain.head: found \'deep\', must be "linear" or "hidden"'),
        ("methods/plain", {"method": "fedavg", "clients": 2, "cohort": 3}, "cohort: found 3, must be at most the pop"),
        (
            "methods/plain/options",
            {"momentun": 0.9},
            "methods.plain: options.momentun: found set, must be left out: fedavg has no options",
        ),
        (
            "methods/plain",
            {"method": "fedavgm", "options": {"momentum": 2}},
            "methods.plain: options.momentum: found 2, must be a number, 0 to 1",
        ),
        ("methods/plain/codec", "f8", 'methods.plain: codec: found "f8", must be "f32", "f16" or "int8"'),
        ("methods/plain/published", {"accuracy": 1.0}, "methods.plain.published"),
        ("faults", {"fault": [{"client": 0}]}, "faults.fault[0].round: found nothing, must be"),
        ("baseline", "other", "baseline: found 'other', must be one of plain, small-updates"),
        ("base", "fedsgd", "base: found 'fedsgd', must be a preset: fedclassavg, "),
        ("photos/public_per_class", -1, "photos.public_per_class: found -1, must be an integer from 0"),
        ("methods/plain/candidates", -1, "methods.plain.candidates: found -1, must be the number of models"),
        ("reduced", {"clients": 0}, "small.toml with [reduced]: clients: found 0"),
        ("variants", {"f16": {"codec": "f8"}}, "methods.plain.f16: codec"),
    ],
)
def test_a_wrong_key_is_named_with_what_was_found_and_what_is_allowed(key: str, value: Any, words: str) -> None:
    with pytest.raises(StudyError) as caught:
        parsed(changed(key, value))

    assert words in str(caught.value)
    assert str(caught.value).startswith("small.toml")


def test_values_from_the_command_line_replace_those_of_the_chosen_size(tmp_path: Path) -> None:
    file = tmp_path / "small.toml"
    file.write_text(STUDY + "[reduced]\nclients = 3\n[reduced.partition]\nper_class = 2\n")
    changes = [("partition.per_class", 1), ("methods.plain.hyper.lr_classifier", 0.5)]

    full, reduced = (load(str(file), reduced=reduced, changes=changes) for reduced in (False, True))

    assert (full.clients, reduced.clients) == (4, 3)
    for study in (full, reduced):
        assert study.partition.settings == {"per_class": 1}
        assert json.loads(study.task_settings("plain", 1))["hyper"]["lr_classifier"] == 0.5


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("partition.per_clas", 1, "small.toml with --set: partition: 'per_clas' is no setting of partition camera-iid"),
        ("client", 1, "small.toml with --set: client: unknown key; did you mean clients?"),
        ("clients.many", 1, "small.toml with --set: clients: found {'many': 1}, must be an integer"),
    ],
)
def test_a_wrong_value_from_the_command_line_is_named(tmp_path: Path, key: str, value: int, words: str) -> None:
    (tmp_path / "small.toml").write_text(STUDY)

    with pytest.raises(StudyError) as caught:
        load(str(tmp_path / "small.toml"), changes=[(key, value)])

    assert words in str(caught.value)


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    ("name", "change"),
    [(name, each) for name in REDUCED for each in re.findall(r"--set (partition\.\w+=[\w-]+)", load(name).paper)],
)
def test_another_partition_that_a_preset_advises_can_be_had(name: str, change: str, reduced: bool) -> None:
    key, value = named_value(change, "--set")

    partition = load(name, reduced=reduced, changes=[(key, value)]).partition

    assert partition.model_dump()[key.removeprefix("partition.")] == value


def test_a_partition_of_another_name_inherits_only_settings_that_it_has_too() -> None:
    classes = {"name": "classes", "classes_per_client": 3}
    based = {"base": "pfedsim", "name": "mine", "partition": classes}

    # Inherited are two classes per client; beta 0.1 and, in both sizes, a minimum of photos; three photos per class.
    told = load("fedconcat", changes=[("partition.beta", 0.2), ("partition.name", "dirichlet")])
    kept = load("pfedsim", reduced=True, changes=[("partition.name", "dirichlet")])
    full, smaller = (parsed(based, reduced=reduced) for reduced in (False, True))
    reduced = parsed(changed("reduced", {"partition": classes}), reduced=True)

    assert told.partition.settings == {"beta": 0.2}
    assert kept.partition.settings == {"beta": 0.1, "min_photos": 20}
    for study in (full, smaller, reduced):
        assert study.partition.settings == {"classes_per_client": 3}


@pytest.mark.parametrize("order", [1, -1])
def test_a_setting_that_is_asked_for_beside_a_partition_without_it_is_refused(order: int) -> None:
    changes = [("partition.name", "dirichlet"), ("partition.classes_per_client", 3)][::order]

    with pytest.raises(StudyError, match="'classes_per_client' is no setting of partition dirichlet"):
        load("fedconcat", changes=changes)


def test_a_study_takes_from_its_base_what_it_does_not_say_itself() -> None:
    values = {
        "base": "pfedsim",
        "name": "mine",
        "clients": 12,
        "methods": {"own": {"method": "fedbn", "variants": False}},
    }

    full, reduced = (parsed(values, reduced=reduced) for reduced in (False, True))
    base = load("pfedsim")

    assert list(full.methods) == [*base.methods, "own"]
    assert (full.name, full.clients, full.model) == ("mine", 12, base.model)
    assert reduced.settings["rounds"] == load("pfedsim", reduced=True).settings["rounds"] != full.settings["rounds"]


def test_a_method_has_the_bundles_that_it_needs_unless_the_study_says_others() -> None:
    values = raw()
    values["methods"] = {
        "plain": {"method": "fedavg"},
        "distilled": {"method": "kt_pfl"},
        "weighted": {"method": "kt_pfl", "options": {"weight": True}},
        "centres": {"method": "ifca", "options": {"clusters": 3}},
        "own": {"method": "ifca", "candidates": 7, "objective": "proximal", "programs": ["class_sums"]},
    }

    study = parsed(values)

    assert {label: study.bundles_of(label) for label in study.methods} == {
        "plain": BundleSettings(),
        "distilled": BundleSettings(objective="distil", public=True),
        "weighted": BundleSettings(),
        "centres": BundleSettings(candidates=3),
        "own": BundleSettings(candidates=7, objective="proximal", programs=("class_sums",)),
    }


def test_a_method_may_divide_the_photos_in_another_way() -> None:
    own = {"clients": 1, "partition": {"name": "dirichlet", "beta": 2.0}}
    values = changed("methods/plain", {"method": "fedavg", **own})

    study = parsed(values)

    found = study.partition_of("plain", 7)
    assert (found.name, found.beta, found.clients, found.seed) == ("dirichlet", 2.0, 1, 7)
    assert study.partition_of("small-updates", 7).name == "camera-iid"
    values["methods"]["plain"]["partition"] = {"name": "dirichlet", "per_class": 3}
    with pytest.raises(StudyError, match=r"methods\.plain\.partition: 'per_class' is no setting of"):
        parsed(values)


def test_chosen_methods_without_the_baseline_are_compared_with_training_alone() -> None:
    study = parsed(changed("baseline", "plain"))

    assert choose(study, methods=("small-updates",)).baseline is None
    assert choose(study, methods=("small-updates", "plain")).baseline == "plain"
    with pytest.raises(StudyError, match=r"--baseline: found 'plain', must be one of small-updates"):
        choose(study, methods=("small-updates",), baseline="plain")


def test_a_baseline_that_the_study_does_not_have_is_refused() -> None:
    with pytest.raises(StudyError, match=r"--baseline: found 'best', must be one of plain, small-updates, broken"):
        choose(parsed(raw()), baseline="best")


def test_a_methods_own_settings_stand_before_the_studys() -> None:
    values = changed("epochs", 5)
    values["methods"]["plain"] |= {"steps": 7, "hyper": {"lr_classifier": 0.5}, "cohort": 2}

    settings = json.loads(parsed(values).task_settings("plain", 1))

    # Steps instead of epochs; of the hyper-parameters only the one that it sets itself.
    assert settings["steps"] == 7 and "epochs" not in settings
    assert settings["hyper"] == {"lr_extractor": 0.05, "lr_classifier": 0.5}
    assert settings["cohort"] == 2 and settings["population"] == 4


def test_a_method_with_clients_of_its_own_takes_all_of_them_in_a_round_unless_it_says_how_many() -> None:
    values = raw()
    values["methods"] = {
        "plain": {"method": "fedavg"},
        "pooled": {"method": "fedavg", "clients": 1},
        "more": {"method": "fedavg", "clients": 9, "cohort": 5},
    }

    study = parsed(values)

    settings = {label: json.loads(study.task_settings(label, 1)) for label in study.methods}
    assert {label: found["population"] for label, found in settings.items()} == {"plain": 4, "pooled": 1, "more": 9}
    # The study's cohort is 3 of 4.
    assert {label: found.get("cohort") for label, found in settings.items()} == {"plain": 3, "pooled": None, "more": 5}


def test_each_seed_gives_a_task_a_seed_of_its_own() -> None:
    study = parsed(raw())

    seeds = {json.loads(study.task_settings("plain", seed))["seed"] for seed in (1, 2)}

    assert len(seeds) == 2


def test_the_reduced_table_changes_only_what_it_names() -> None:
    values = changed("reduced", {"rounds": 1, "model": {"batch": 4}})

    full, reduced = parsed(values), parsed(values, reduced=True)

    assert (full.settings["rounds"], full.model.batch) == (2, 16)
    assert (reduced.settings["rounds"], reduced.model.batch, reduced.model.input_size) == (1, 4, 16)


def test_variants_run_every_method_in_each_but_those_that_want_none() -> None:
    values = changed("variants", {"f32": {"codec": "f32"}, "f16": {"codec": "f16"}})
    values["methods"] = {"plain": {"method": "fedavg"}, "alone": {"method": "local_only", "variants": False}}

    study = parsed(values)

    assert list(study.methods) == ["plain.f32", "plain.f16", "alone"]
    assert json.loads(study.task_settings("plain.f16", 1))["codec"] == "f16"


def test_a_relative_folder_of_photos_counts_from_the_study(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(STUDY.replace('source = "digits"', 'source = "photos"'))

    assert load(str(tmp_path / "mine.toml")).photos.source == str(tmp_path / "photos")


def test_a_choice_keeps_the_studys_order_and_takes_other_seeds() -> None:
    chosen = choose(parsed(raw()), methods=("small-updates", "plain"), seeds=(9,), photos=None)

    assert list(chosen.methods) == ["plain", "small-updates"]
    assert chosen.seeds == (9,)


def test_the_page_lists_every_key_of_a_study() -> None:
    page = PAGE.read_text(encoding="utf-8")

    keys = [
        *(name for name in Study.model_fields if name not in ("photos", "partition", "model", "methods")),
        *(f"photos.{name}" for name in PhotosSection.model_fields),
        *(f"model.{name}" for name in ModelSection.model_fields),
        *(f".{name}" for name in MethodSection.model_fields),
    ]
    assert [key for key in keys if f"{key}`" not in page] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "no such file, and no preset of that name"),
        (["fedns", "--method", "fedsgd"], "--method: found 'fedsgd', must be one of"),
        (["fedns", "--seed", "3", "--seed", "3"], "--seed: found 3 more than once"),
        (["fedns", "--photos", "nowhere"], "nowhere is no folder"),
        (["fedns", "--photos", "digits", "--device", "tpu"], "--device: found 'tpu'"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_sentence(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = fedlens("compare", *arguments, "--out", tmp_path / "out", "--cache", tmp_path / "cache")

    assert words in error_text(done)


@pytest.mark.parametrize("name", ["half", "half_way:METHOD"])
def test_a_study_takes_a_method_of_another_package_and_exports_the_bundles_that_it_needs(site: Path, name: str) -> None:
    install(site, "half-way", METHODS, half_way=HALF)

    study = parsed(changed("methods/half", {"method": name, "options": {"part": 0.25}}))

    assert json.loads(study.task_settings("half", 1))["method"] == name
    assert study.bundles_of("half") == BundleSettings(objective="proximal")


def test_a_study_whose_method_is_not_installed_says_which_module_is_missing() -> None:
    with pytest.raises(StudyError, match=r"methods.half: method: 'half_way:METHOD' cannot be imported: there is no"):
        parsed(changed("methods/half", {"method": "half_way:METHOD"}))
