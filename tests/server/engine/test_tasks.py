"""Everything that can be wrong with a task is said when it is made, naming the key, what was found, what is allowed."""

import json
from hashlib import sha256

import pytest

from fedlens_proto.v1 import admin_pb2, manifest_pb2
from fedlens_server.engine.operators import tasks
from fedlens_server.engine.operators.access import ADMIN
from fedlens_server.errors import Malformed, TaskDiffers, Unknown
from tests.server.bundles import TinyBundle, tiny_bundle
from tests.server.fakes import SEED, SETTINGS, Bench


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "fedmagic"}, "method: found 'fedmagic', must be one of ditto"),
        ({"rounds": 0}, "rounds: found 0, must be a whole number, 1 to 1000000 (rounds to commit)"),
        ({"rounds": "ten"}, 'rounds: found "ten", must be'),
        ({"rounds": True}, "rounds: found true, must be"),
        ({"population": -1}, "population: found -1, must be a whole number, 1 to 1000000 (trainers to wait for)"),
        ({"cohort": 5}, "cohort: found 5, must be at most the population, 4"),
        ({"cohort": "some"}, 'cohort: found "some", must be "all", or a whole number, 1 to 1000000 (clients a round)'),
        ({"deadline_s": 0}, "deadline_s: found 0, must be seconds, above 0"),
        ({"deadline_s": float("inf")}, "deadline_s: found Infinity, must be seconds"),
        ({"min_reports": 5}, "min_reports: found 5, must be at most the clients of a round, 4"),
        ({"cohort": 2, "min_reports": 3}, "min_reports: found 3, must be at most the clients of a round, 2"),
        ({"epochs": 1, "steps": 1}, "steps: found 1, must be left out when epochs is set"),
        ({"codec": "zip"}, 'codec: found "zip", must be "f32", "f16" or "int8"'),
        ({"epoch": 3}, "epoch: there is no such setting; did you mean epochs?"),
        ({"zzz": 3}, "zzz: there is no such setting; there are batch_norm, canary, cap, clip, codec"),
        (
            {"eligible.num_examples": 100},
            """eligible.num_examples: there is no such setting; give 'eligible={"num_examples": 100}'""",
        ),
        ({"hyper": {"lr": 0.1}}, "hyper.lr: found 0.1, must be a hyper-parameter of the bundle: lr_classifier, moment"),
        ({"hyper": {"momentum": 2}}, "hyper.momentum: found 2, must be from 0 to 1"),
        ({"hyper": {"momentum": "x"}}, 'hyper.momentum: found "x", must be numbers by name'),
        ({"hyper": {"momentum": float("nan")}}, "hyper.momentum: found NaN"),
        ({"seed": "5eed"}, 'seed: found "5eed", must be 64 hexadecimal digits'),
        ({"options": {"rho": 1}}, "options.rho: found set, must be left out: fedavg has no options"),
        ({"max_update_norm": 0}, "max_update_norm: found 0, must be a number above 0"),
        (
            {"max_photos_per_client": 2**63},
            "max_photos_per_client: found 9223372036854775808, must be a whole number, 1 to",
        ),
    ],
)
def test_a_bad_setting_is_refused_by_name(bench: Bench, changes: dict[str, object], message: str) -> None:
    with pytest.raises(Malformed) as caught:
        bench.make(**{"population": 4} | changes)

    assert message in str(caught.value)
    assert not tasks.listed(bench.federation).tasks


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not valid JSON"),
        ("[]", "must be a JSON object"),
        ("{", "not valid JSON"),
        ("[" * 60_000, "not valid JSON"),
        ('{"\\ud800": 1}', "not valid JSON: .* surrogates not allowed"),
        ("x" * 70_000, "70000 characters, at most 65536"),
        ('{"rounds": 1, "population": 1}', "method: found nothing, must be name of a method"),
    ],
)
def test_settings_that_are_no_object_of_settings_are_refused(bench: Bench, text: str, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        bench.create(text)


@pytest.mark.parametrize("name", ["", " padded ", "a\nb", "x" * 101, "17"])
def test_a_bad_name_is_refused(bench: Bench, name: str) -> None:
    with pytest.raises(Malformed, match="name: found"):
        bench.make(name=name)


def test_made_twice_with_the_same_content_it_is_one_task(bench: Bench) -> None:
    first = bench.make()

    assert bench.make() == first
    bench.reopen()
    assert bench.make() == first
    assert len(tasks.listed(bench.federation).tasks) == 1


def test_made_again_with_other_content_it_is_refused(bench: Bench) -> None:
    bench.make()

    with pytest.raises(TaskDiffers, match="choose another name"):
        bench.make(rounds=4)
    with pytest.raises(TaskDiffers):
        bench.make(tiny_bundle(fill=1.0))


def test_the_seed_is_never_shown(bench: Bench) -> None:
    task = bench.make(seed=SEED)

    assert SEED not in task.settings_json
    assert "seed" not in json.loads(task.settings_json)
    assert bench.task.seed == bytes.fromhex(SEED)
    bench.reopen()
    assert bench.task.seed == bytes.fromhex(SEED)


def test_without_a_seed_two_tasks_get_different_ones(bench: Bench) -> None:
    for name in ("one", "two"):
        bench.make(name=name, seed=None)

    tasks = bench.federation.tasks
    assert tasks[1].seed != tasks[2].seed


def test_settings_come_back_with_defaults_filled_in(bench: Bench) -> None:
    shown = json.loads(bench.make(hyper={"momentum": 0.5}).settings_json)

    assert shown["codec"] == "f32"
    assert shown["max_consecutive_abandoned"] == 5
    assert shown["hyper"] == {"momentum": 0.5}


def make(bench: Bench, *manifests: bytes) -> None:
    request = admin_pb2.CreateTaskRequest(
        protocol=1, name="task", manifests=manifests, settings_json=json.dumps(SETTINGS)
    )
    tasks.create(bench.federation, request, ADMIN).result()


def test_what_a_method_has_to_say_is_shown_with_the_task(bench: Bench) -> None:
    bench.make(population=2)
    bench.make(population=2, method="fedbn", name="other")

    plain, same = (found.notices for found in tasks.listed(bench.federation).tasks)
    assert not plain and "fedbn is fedavg in this task" in same[0]


def test_parts_must_be_stored_first(bench: Bench) -> None:
    bundle = tiny_bundle()

    with pytest.raises(Malformed, match="is not stored; put the bundle's parts first"):
        make(bench, bundle.manifest)


def test_a_damaged_manifest_is_refused(bench: Bench) -> None:
    with pytest.raises(Malformed, match=r"manifests\[0\]"):
        make(bench, b"\xff\xff\xff")
    with pytest.raises(Malformed, match="manifests: found 0"):
        make(bench)


def test_an_initial_blob_with_other_tensors_is_refused(bench: Bench) -> None:
    bundle, other = tiny_bundle(), tiny_bundle(features=5)
    manifest = manifest_pb2.Manifest.FromString(bundle.manifest)
    manifest.initial = sha256(other.initial).digest()
    manifest.parts.append(manifest_pb2.Part(sha256=manifest.initial, size=len(other.initial)))
    bench.put_parts(bundle)
    bench.put_parts(other)

    with pytest.raises(Malformed, match="does not hold the bundle's exchangeable tensors"):
        make(bench, manifest.SerializeToString())


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (tiny_bundle(class_prefix="kind"), "class names differ .* found kind.*, must be .*; export all bundles"),
        (tiny_bundle(features=5), "must be bundles with equal tensors for fedavg"),
        (tiny_bundle(fill=1.0), "must be bundles with equal tensors for fedavg"),
    ],
)
def test_bundles_of_one_task_must_agree(bench: Bench, second: TinyBundle, message: str) -> None:
    with pytest.raises(Malformed, match=message):
        bench.make(tiny_bundle(), second)


def test_a_reference_that_the_method_does_not_give_is_named(bench: Bench) -> None:
    with pytest.raises(Malformed, match=r"phase 'train': .*program 'step' needs reference \['previous'\]"):
        bench.make(tiny_bundle(references=["global", "previous"]))


def test_the_proximal_reference_is_bound_to_the_weights_that_the_training_starts_from(bench: Bench) -> None:
    bench.make(tiny_bundle(references=["global"]))

    (phase,) = bench.task.phases
    assert phase.plan.instructions[1].train.bindings[0].source.value == "start"


def test_a_model_of_a_task_that_has_not_started_is_the_initial_one(bench: Bench) -> None:
    bench.make()

    model = tasks.model(bench.federation, "task")

    assert model.blob_sha256 == sha256(tiny_bundle().initial).digest()
    assert model.round == 0
    assert list(model.class_names) == ["class 0", "class 1"]
    with pytest.raises(Unknown):
        tasks.model(bench.federation, "nothing")
