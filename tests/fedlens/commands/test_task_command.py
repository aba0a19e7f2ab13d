"""`fedlens task` against a server in this process."""

import asyncio
import csv
import json
import re
from collections import OrderedDict
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn
from typer.testing import Result

from fedlens import publishing
from fedlens.publishing import sign_bundle
from fedlens_export.exporting import Training, whole_model_bundle
from fedlens_export.network import Normalisation
from fedlens_export.signing import Terms, new_key
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import update_pb2
from tests.fedlens.commands.cli import error_text, fedlens
from tests.server.bundles import tiny_bundle
from tests.server.http.running import ADMIN_TOKEN, Server, running, trained, update


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """A server; the folder has its profile and a bundle."""
    async with running(tmp_path / "server") as started:
        (tmp_path / "admin.token").write_text(f"{ADMIN_TOKEN}\n")
        (tmp_path / "admin.toml").write_text(f'url = "{started.admin_url}"\ntoken_file = "admin.token"\n')
        bundle = tiny_bundle()
        (tmp_path / "bundle/parts").mkdir(parents=True)
        (tmp_path / "bundle/manifest.pb").write_bytes(bundle.manifest)
        for digest, content in bundle.by_digest.items():
            (tmp_path / "bundle/parts" / digest.hex()).write_bytes(content)
        yield started


async def task(*arguments: str, **environment: str) -> Result:
    variables = {"FEDLENS_ADMIN": "admin.toml", "FEDLENS_ADMIN_TOKEN": ""} | environment
    return await asyncio.to_thread(fedlens, "task", *arguments, **variables)


async def created(*more: str, bundle: str = "bundle") -> Result:
    return await task("create", "demo", "--bundle", bundle, "--population", "1", "--rounds", "2", *more)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def with_one_round(server: Server, bundle: str = "bundle") -> None:
    """A task `demo` after its first round, in which all tensors have become 2."""
    made = await created(bundle=bundle)
    assert made.exit_code == 0, made.output
    client = await server.client(1)
    assignment = await client.assignment()
    await client.upload(assignment, update(assignment, trained(value=2.0)))
    await client.check_in(hold_ms=10_000)


async def test_a_task_takes_statements_with_its_bundle_and_newer_ones_later(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing.time, "time", server.clock.now)

    def sign(days: int) -> None:
        sign_bundle(Bundle.open(tmp_path / "bundle"), tmp_path / "ann.key", Terms(any_app=True, days=days))

    publisher = new_key(tmp_path / "ann")
    unsigned = await task("renew", "demo", "--bundle", "bundle")
    sign(days=10)
    made = json.loads((await created("--json")).stdout)
    shown = await task("show", "demo")
    sign(days=90)
    renewed = json.loads((await task("renew", "demo", "--bundle", "bundle", "--json")).stdout)

    assert "bundle: nobody has signed it; sign it with `fedlens sign`" in error_text(unsigned)
    assert made["statements"][0]["publisher"] == publisher.id.hex()
    assert "ends in 10 days: sign the bundle anew" in " ".join(shown.stdout.split())
    assert (len(made["notices"]), renewed["notices"]) == (1, [])
    assert renewed["statements"][0]["not_after"] > made["statements"][0]["not_after"]


async def test_a_task_is_created_with_its_settings(server: Server) -> None:
    result = await created(
        *("--hyper", "lr_classifier=0.5", "--deadline", "30", "--codec", "f16", "--epochs", "2"),
        *("--personal-evaluation", "--difference", "--download-codec", "int8", "--download-difference"),
        *("--set", "max_update_norm=7.5", "--seed", "ab" * 32, "--json"),
    )

    assert result.exit_code == 0, result.output
    settings = json.loads(result.stdout)["settings"]
    expected = {"method": "fedavg", "rounds": 2, "population": 1, "hyper": {"lr_classifier": 0.5}, "epochs": 2}
    expected |= {"deadline_s": 30, "codec": "f16", "difference": True, "download_codec": "int8"}
    expected |= {"download_difference": True, "personal_evaluation": True, "max_update_norm": 7.5}
    assert settings | expected == settings
    assert "ab" * 32 not in result.stdout


async def test_the_epsilon_of_a_task_is_told_when_it_is_made_and_shown(server: Server) -> None:
    private = ("--set", 'dp={"clip": 1, "noise": 4}', "--set", "max_participations=10")

    made = await created(*private)
    shown = await task("show", "demo")
    values = json.loads((await task("show", "demo", "--json")).stdout)["task"]["privacy"]

    # z 4 at delta 1e-6 and k 10 gives 3.747.
    assert "epsilon 3.75 at delta 1e-06" in made.stdout
    assert "epsilon 3.75 at delta 1e-06" in shown.stdout
    assert "0 spent so far, in 0 rounds" in shown.stdout
    assert values == {"delta": 1e-06, "epsilon": pytest.approx(3.747, abs=0.001), "spent": 0.0, "participations": 0}
    assert json.loads((await created("--json", *private)).stdout)["privacy"] == values


async def test_creating_a_task_again_is_harmless(server: Server) -> None:
    first, again = [await created("--json", "--seed", "ab" * 32) for _ in range(2)]

    assert (first.exit_code, again.exit_code) == (0, 0)
    assert first.stdout == again.stdout


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--method", "fedmagic"), "fedmagic"),
        (("--hyper", "lr_classifier"), "--hyper: found 'lr_classifier', must be a name, =, and a value"),
        (("--hyper", "lr_classifier=fast"), "--hyper lr_classifier: found 'fast', must be a number"),
        (("--set", "colour=blue"), "colour"),
        (("--set", "colour.of=blue"), "colour.of"),
        (("--method", "pfedsim", "--set", "options.variant=printed"), "options.variant: found 'printed', must be"),
        (("--set", "hyper.lr_classifier=-1"), "hyper.lr_classifier: found -1, must be from 0"),
        (("--codec", "int4"), 'codec: found "int4", must be "f32", "f16" or "int8"'),
        (("--download-codec", "zip"), 'download_codec: found "zip", must be "f32", "f16" or "int8"'),
    ],
)
async def test_a_setting_that_cannot_be_used_is_named(server: Server, more: tuple[str, ...], expected: str) -> None:
    assert expected in error_text(await created(*more))


async def test_a_folder_that_is_no_bundle_is_named(server: Server) -> None:
    assert "is no bundle: it has no manifest.pb" in error_text(await created(bundle="."))


async def test_tasks_are_listed(server: Server) -> None:
    await created()

    table, values = await task("list"), await task("list", "--json")

    assert "demo" in table.stdout and "waiting" in table.stdout and "0 of 2" in table.stdout
    assert [task["name"] for task in json.loads(values.stdout)] == ["demo"]


async def test_a_task_is_shown_round_by_round(server: Server) -> None:
    await with_one_round(server)

    table, values = await task("show", "demo"), await task("show", "1", "--json")

    # 1 of 4 before and 3 of 4 after, as `running.update` says.
    assert "25.0%" in table.stdout and "75.0%" in table.stdout and "committed" in table.stdout
    assert "settings: batch_norm=average" in table.stdout and " rounds=2" in table.stdout
    rounds = json.loads(values.stdout)["rounds"]
    assert [entry["state"] for entry in rounds] == ["committed", "open"]
    pooled = {"count": 4, "correct": 3, "loss": 2.0, "accuracy": 0.75, "mean_loss": 0.5}
    assert rounds[0]["personal"]["after"]["pooled"] == pooled


async def test_the_figures_of_committed_rounds_are_written_for_other_tools(server: Server, tmp_path: Path) -> None:
    await with_one_round(server)

    shown = await task("show", "demo", "--csv", str(tmp_path / "r.csv"), "--tensorboard", str(tmp_path / "board"))

    assert shown.exit_code == 0
    with (tmp_path / "r.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["round"], row["personal_before_accuracy"], row["pooled_after_accuracy"]) == ("1", "0.25", "0.75")
    assert [path.name.split(".")[:3] for path in (tmp_path / "board" / "demo").iterdir()] == [
        ["events", "out", "tfevents"]
    ]


async def test_a_file_of_figures_needs_a_folder_that_is_there(server: Server, tmp_path: Path) -> None:
    await created()

    refused = error_text(await task("show", "demo", "--csv", "gone/r.csv"))

    assert refused == "fedlens: gone/r.csv cannot be written: No such file or directory; name another file"
    assert not (tmp_path / "gone").exists()


async def test_a_changed_setting_is_told_with_its_earlier_value(server: Server) -> None:
    await created()

    changed = await task("set", "demo", "deadline_s=30", "max_update_norm=7.5")

    assert changed.stdout.endswith("deadline_s: 3600.0 -> 30\nmax_update_norm: null -> 7.5\n")


async def test_a_round_that_an_operator_ends_is_told_with_its_end(server: Server) -> None:
    await created()
    await (await server.client(1)).assignment()

    ended = await task("deadline", "demo")

    # It may be abandoned before the command looks.
    assert re.search(r"^round 1 is (closing|abandoned) with 0 updates", ended.stdout, re.MULTILINE), ended.output


async def test_what_a_client_says_of_its_failure_is_shown_as_it_is(server: Server) -> None:
    await created()
    client = await server.client(1)
    assignment = await client.assignment()
    request = update_pb2.FailureRequest(protocol=1, reason=update_pb2.FAILURE_REASON_INTERNAL, detail="[/red] gone")
    await client.send(
        "POST", f"/v1/tasks/{assignment.task}/rounds/{assignment.round}/failure", request.SerializeToString()
    )

    result = await task("show", "demo")

    assert result.exit_code == 0
    assert "[/red] gone" in result.stdout


async def test_a_task_is_stopped(server: Server) -> None:
    await created()

    result = await task("stop", "demo", "--json")

    assert json.loads(result.stdout)["state"] == "stopped"


async def test_the_model_is_written_as_a_blob(server: Server, tmp_path: Path) -> None:
    await with_one_round(server)

    result = await task("model", "demo", "--out", "model.blob", "--json")

    written = (tmp_path / "model.blob").read_bytes()
    values = json.loads(result.stdout)
    assert (values["round"], values["classes"]) == (1, ["class 0", "class 1"])
    assert values["blob"] == sha256(written).hexdigest()
    np.testing.assert_array_equal(Blob.from_bytes(written)["fc.bias"], np.full(2, 2.0, np.float32))


async def test_a_model_that_no_round_has_trained_is_told_apart(server: Server) -> None:
    await created()

    told = await task("model", "demo", "--out", "model.blob")

    what = "the model of demo with its initial weights, untrained by any round, 2 classes"
    assert told.stdout == f"wrote model.blob: {what}\n"


async def test_a_released_round_is_named(server: Server) -> None:
    await created("--set", "release=manual")
    before = (await task("show", "demo")).stdout
    client = await server.client(1)
    assignment = await client.assignment()
    await client.upload(assignment, update(assignment, trained(value=2.0)))
    await client.check_in(hold_ms=10_000)

    released = await task("release", "demo")
    values = json.loads((await task("show", "demo", "--json")).stdout)

    assert "released" not in before
    assert "released: round 1" in released.stdout
    assert "released: round 1" in (await task("show", "demo")).stdout
    assert values["task"]["released_round"] == 1


async def test_the_model_is_written_as_safetensors(server: Server) -> None:
    await with_one_round(server)

    result = await task("model", "demo", "--out", "model.safetensors")

    assert result.exit_code == 0, result.output
    with safe_open("model.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("fc.weight"), np.full((2, 3), 2.0, np.float32))
        origin = {"bundle": tiny_bundle().id.hex(), "task": "demo", "round": "1"}
        assert file.metadata() == origin | {"classes": '["class 0", "class 1"]'}


async def test_the_whole_model_is_written_as_a_program(server: Server, tmp_path: Path) -> None:
    # From the means of a photo's colours: tensors that `running.trained` fits.
    layers = OrderedDict[str, nn.Module](mean=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), fc=nn.Linear(3, 2))
    training = Training(class_names=("class 0", "class 1"), batch=4)
    as_it_is = Normalisation((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    whole_model_bundle(tmp_path / "means", nn.Sequential(layers), training, 8, normalisation=as_it_is)
    await with_one_round(server, bundle="means")
    arguments = ("--whole", "model.pt2", "--bundle", "means")

    told = await task("model", "demo", *arguments)
    values = json.loads((await task("model", "demo", *arguments, "--json")).stdout)

    assert told.exit_code == 0, told.output
    first, second = told.stdout.splitlines()
    assert first == "wrote model.pt2: the whole model of demo after round 1, 2 classes"
    assert second.startswith("input: float32 [N, 3, 8, 8], RGB in 0..1")
    assert second.endswith('classes: ["class 0", "class 1"]')
    assert (values["file"], values["metadata"]["round"]) == ("model.pt2", "1")
    # All weights and biases are 2, all means 0.5: 2 * (0.5 + 0.5 + 0.5) + 2 = 5.
    logits = torch.export.load("model.pt2").module()(torch.full((1, 3, 8, 8), 0.5))
    torch.testing.assert_close(logits.detach(), torch.full((1, 2), 5.0))


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        (("--out", "taken"), "cannot be written"),
        (("--out", "gone/model.blob"), "cannot be written"),
        (("--whole", "model.pt"), "found a name in .pt, must be one in .pt2, .onnx, .pte"),
        (
            ("--whole", "model.pt2", "--bundle", "gone"),
            "is no bundle: it has no manifest.pb; name the folder that `fedlens export` wrote with --bundle",
        ),
        ((), "name one file: --out for the trained tensors, or --whole for the whole model"),
        (("--out", "model", "--whole", "model.pt2"), "name one file: --out for the trained tensors, or"),
    ],
)
async def test_a_model_that_cannot_be_written_is_refused_in_a_line_and_leaves_nothing(
    server: Server, tmp_path: Path, more: tuple[str, ...], expected: str
) -> None:
    await created()
    (tmp_path / "taken").mkdir()
    before = names_in(tmp_path)

    refused = await task("model", "demo", *more)

    assert expected in error_text(refused)
    assert len(refused.stderr.splitlines()) == 1
    assert names_in(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (
            ("--goal", "2", "--set", "goal=4"),
            "--set goal: found 'goal=4' beside the option for it; give one of the two",
        ),
        (("--deadline", "2", "--set", "deadline_s=4"), "--set deadline_s: found 'deadline_s=4' beside the option"),
        ((), "must be a whole number, 1 to 1000000 (updates that a round wants); give --goal N or --population N"),
        (
            ("--goal", "2", "--population", "2"),
            "--goal is for clients that come, --population and --cohort for drawn ones",
        ),
        (
            ("--goal", "2", "--hyper", "lr=0.1", "--set", "hyper.lr=0.2"),
            "--set hyper.lr: found 'hyper.lr=0.2' beside --hyper lr",
        ),
        (
            ("--goal", "2", "--method", "fedprox"),
            "task settings: bundle: objective: found 'cross_entropy', must be prox",
        ),
    ],
)
async def test_a_task_that_is_refused_is_told_in_the_words_of_the_command(
    server: Server, more: tuple[str, ...], told: str
) -> None:
    assert told in error_text(await task("create", "demo", "--bundle", "bundle", *more))


async def test_a_setting_replaces_the_default_of_an_option(server: Server) -> None:
    made = await task("create", "demo", "--bundle", "bundle", "--goal", "1", "--set", "rounds=7", "--json")

    assert json.loads(made.stdout)["settings"]["rounds"] == 7


async def test_a_task_that_is_not_there_is_named(server: Server) -> None:
    assert "refused (unknown)" in error_text(await task("show", "nothing/like this"))


async def test_the_token_may_come_from_the_environment(server: Server, tmp_path: Path) -> None:
    (tmp_path / "admin.token").unlink()

    right = await task("list", FEDLENS_ADMIN_TOKEN=ADMIN_TOKEN)
    wrong = error_text(await task("list", FEDLENS_ADMIN_TOKEN="mistaken"))

    assert right.exit_code == 0
    assert "does not accept the token" in wrong
    assert "mistaken" not in wrong
    assert "token_file" in error_text(await task("list"))


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "admin.toml").write_text('url = "http://127.0.0.1:1"\n')

    refused = error_text(await task("list", FEDLENS_ADMIN_TOKEN="x"))

    assert "http://127.0.0.1:1 cannot be reached" in refused
    assert "is the server running?" in refused


async def _shown_by(answer: bytes, folder: Path) -> str:
    """The error text of a command that is answered so by something else than FedLens, which then hangs up."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        (folder / "admin.toml").write_text(f'url = "http://127.0.0.1:{port}"\n')
        return error_text(await task("list", FEDLENS_ADMIN_TOKEN="x"))


async def test_an_answer_that_is_cut_short_or_no_http_is_told_in_a_sentence(tmp_path: Path) -> None:
    nothing, half, other = [
        await _shown_by(each, tmp_path) for each in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", b"SSH-2\r\n")
    ]

    assert "closed the connection before it had answered; where the server speaks HTTPS, let `url`" in nothing
    assert half.endswith("closed the connection in the middle of its answer")
    assert "gave an answer that is not HTTP; where the server speaks HTTPS" in other
    assert all(sign not in text for text in (nothing, half, other) for sign in ("(", "Error", "Remote"))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("url = 3\n", "admin.toml: url: found 3, must be a text"),
        ("", "admin.toml: url: found None, must be such as https://127.0.0.1:8444"),
        ('url = "ftp://x"\n', "admin.toml: url: found 'ftp://x'"),
        ('url = "https://[::1"\n', "admin.toml: url: found 'https://[::1', must be such as"),
        ('url = "https://127.0.0.1:x"\n', "admin.toml: url: found 'https://127.0.0.1:x', must be such as"),
        ('url = "https://127.0.0.1:99999"\n', "admin.toml: url: found 'https://127.0.0.1:99999', must be such as"),
        (
            'url = "unix:admin.sock"\n',
            "url: found 'unix:admin.sock', must be such as https://127.0.0.1:8444 or unix:/run/fedlens/operators.sock",
        ),
        (
            'url = "http://fl.example.org:8444"\n',
            "found 'http://fl.example.org:8444'; plain HTTP would show the operators' token to others on the way",
        ),
        ('url = "https://x"\nca = "gone.pem"\n', "admin.toml: ca: found 'gone.pem', but there is no such file"),
        ('url = "https://x"\ntoken = "y"\n', "admin.toml: token: unknown key; allowed are url, ca, token_file"),
        ("url", "admin.toml: not valid TOML"),
    ],
)
async def test_a_profile_that_cannot_be_used_is_refused_by_name(tmp_path: Path, profile: str, expected: str) -> None:
    (tmp_path / "admin.toml").write_text(profile)

    assert expected in error_text(await task("list"))


async def test_without_a_profile_the_way_to_name_one_is_told() -> None:
    assert "--admin DIR/admin.toml" in error_text(await task("list", FEDLENS_ADMIN=""))
