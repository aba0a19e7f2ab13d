"""`fedlens task`: an operator's commands, over the admin API of a running server."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fedlens.commands.admin.profile import Admin, admin_client, reported_admin
from fedlens.commands.options import AsJson, named_value, print_json

task_app = typer.Typer(help="Create tasks on a server, follow and end them, fetch models.", no_args_is_help=True)

TaskName = Annotated[str, typer.Argument(metavar="TASK", help="Name or id of the task.")]


@task_app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Unique name; the same name and content again give the same task.")],
    bundle: Annotated[list[Path], typer.Option(help="Folder of the bundle; may be given several times.")],
    method: Annotated[str, typer.Option(help="Method of the server, or of a package installed there.")] = "fedavg",
    rounds: Annotated[int, typer.Option(help="Rounds to commit.")] = 10,
    goal: Annotated[int | None, typer.Option(help="Updates that a round wants, from the clients that come.")] = None,
    population: Annotated[
        int | None, typer.Option(help="Instead of a goal: trainers to wait for; rounds draw from all of them.")
    ] = None,
    cohort: Annotated[int | None, typer.Option(help="Clients drawn for a round. Default: all.")] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds after which a round closes.")] = None,
    min_reports: Annotated[
        int | None, typer.Option(help="Minimum number of updates; a round with fewer is abandoned.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the photos in each round.")] = None,
    steps: Annotated[int | None, typer.Option(help="Batches in each round, instead of epochs.")] = None,
    hyper: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Hyper-parameter.")] = None,
    codec: Annotated[str | None, typer.Option(help="Codec of updates: f32, f16 or int8.")] = None,
    difference: Annotated[bool, typer.Option(help="Send updates as differences to the download.")] = False,
    download_codec: Annotated[str | None, typer.Option(help="Codec of downloads: f32, f16 or int8.")] = None,
    download_difference: Annotated[
        bool,
        typer.Option(
            help="Offer downloads as differences to the last download that all clients share; not with --goal."
        ),
    ] = False,
    evaluate_every: Annotated[int | None, typer.Option(help="Rounds between global evaluations.")] = None,
    personal_evaluation: Annotated[bool, typer.Option(help="Let every client evaluate its model at the end.")] = False,
    seed: Annotated[str | None, typer.Option(help="64 hexadecimal digits. Default: random.")] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting; a method's own: options.KEY."),
    ] = None,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Create a task from a bundle."""
    with reported_admin():
        from fedlens.admin_client import AdminError
        from fedlens_proto.manifest import Bundle

        drawn = population is not None or cohort is not None
        if drawn and goal is not None:
            raise AdminError("--goal is for clients that come, --population and --cohort for drawn ones: not both")
        settings: dict[str, Any] = {
            "method": method,
            "rounds": rounds,
            "selection": "drawn" if drawn else "arrivals",
        }
        optional = {
            "goal": goal,
            "population": population,
            "cohort": cohort,
            "deadline_s": deadline,
            "min_reports": min_reports,
            "epochs": epochs,
            "steps": steps,
            "codec": codec,
            "difference": difference or None,
            "download_codec": download_codec,
            "download_difference": download_difference or None,
            "evaluate_every": evaluate_every,
            "personal_evaluation": personal_evaluation or None,
            "seed": seed,
        }
        settings |= {key: value for key, value in optional.items() if value is not None}
        if hyper:
            settings["hyper"] = dict(named_value(entry, "--hyper", only_json="a number") for entry in hyper)
        for entry in setting or []:
            key, value = named_value(entry, "--set")
            source = context.get_parameter_source(key.removesuffix("_s"))
            if key in settings and source is not None and source.name == "COMMANDLINE":
                raise AdminError(f"--set {key}: found {entry!r} beside the option for it; give one of the two")
            table, dot, inner = key.partition(".")
            if dot and table in ("hyper", "options") and isinstance(settings.setdefault(table, {}), dict):
                if table == "hyper" and hyper and inner in settings[table]:
                    raise AdminError(f"--set {key}: found {entry!r} beside --hyper {inner}; give one of the two")
                settings[table][inner] = value
            else:
                settings[key] = value
        client, bundles = admin_client(admin), [Bundle.open(folder) for folder in bundle]
        try:
            made = client.create_task(name, bundles, json.dumps(settings))
        except AdminError as error:
            # The server knows no folders, only places in the request.
            text = str(error)
            for i, folder in enumerate(bundle):
                text = text.replace(f"manifests[{i}].", f"{folder}: ").replace(f"manifests[{i}]", str(folder))
            raise AdminError(text) from error
        _print_tasks([made], as_json, one=True)


@task_app.command()
def renew(
    task: TaskName,
    bundle: Annotated[
        list[Path], typer.Option(help="Folder of a bundle that was signed anew; may be given several times.")
    ],
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Give the clients of a task newer statements about its bundles, as `fedlens sign` writes them."""
    with reported_admin():
        from fedlens.admin_client import AdminError
        from fedlens_proto.manifest import Bundle

        statements = [Bundle.open(folder).statement for folder in bundle]
        for folder, statement in zip(bundle, statements, strict=True):
            if not statement:
                raise AdminError(f"{folder}: nobody has signed it; sign it with `fedlens sign`")
        _print_tasks([admin_client(admin).renew(task, statements)], as_json, one=True)


@task_app.command("list")
def list_tasks(admin: Admin = None, as_json: AsJson = False) -> None:
    """List all tasks."""
    with reported_admin():
        _print_tasks(admin_client(admin).tasks(), as_json)


@task_app.command()
def show(
    task: TaskName,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the figures of each round as CSV.")
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Also write the figures as TensorBoard's event files.")
    ] = None,
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Also log the figures to MLflow, at MLFLOW_TRACKING_URI.")
    ] = False,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Show a task round by round."""
    with reported_admin():
        from fedlens.reports import task_report, tracking
        from fedlens.reports.tables import print_table

        tracking.check_installed(tensorboard=tensorboard is not None, mlflow=mlflow)
        found = admin_client(admin).show(task)
        rounds = [task_report.round_values(result) for result in found.rounds]
        tracked = task_report.tracked(found.task, rounds)
        if csv is not None:
            tracking.write_csv(csv, ({"round": number, **figures} for number, figures in tracked.rounds))
        if tensorboard is not None:
            tracking.write_tensorboard(tensorboard, [tracked])
        if mlflow:
            tracking.log_to_mlflow(tracked.name, [tracked])
        if as_json:
            values = {"task": task_report.task_values(found.task), "rounds": rounds}
            print_json(values | {"answers": {each.answer: each.clients for each in found.answers}})
            return
        _print_tasks([found.task], as_json=False, one=True)
        typer.echo(task_report.settings_line(json.loads(found.task.settings_json)))
        caption = "before, after: accuracy, mean and deviation (±) over clients"
        rows = map(task_report.round_row, rounds)
        print_table(task_report.ROUND_COLUMNS, rows, caption, dropped=task_report.DROPPED_COLUMNS)
        for line in (line for each in rounds for line in task_report.round_lines(each)):
            typer.echo(line)
        if found.answers:
            told = ", ".join(f"{each.answer} {each.clients}" for each in found.answers)
            typer.echo(f"clients by what their last check-in was told: {told}")


@task_app.command()
def stop(task: TaskName, admin: Admin = None, as_json: AsJson = False) -> None:
    """End a task now; its last model stays."""
    with reported_admin():
        _print_tasks([admin_client(admin).control(task, "stop")], as_json, one=True)


@task_app.command()
def delete(
    task: TaskName,
    stop_first: Annotated[bool, typer.Option("--stop", help="Also if it goes on: stop it first.")] = False,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Delete a task that has ended, with its model and all results; its name is free again."""
    with reported_admin():
        client = admin_client(admin)
        if stop_first:
            client.control(task, "stop")
        client.delete(task)
        if as_json:
            print_json({"deleted": task})
        else:
            typer.echo(f"deleted {task}")


@task_app.command()
def pause(task: TaskName, admin: Admin = None, as_json: AsJson = False) -> None:
    """Give no more places; what is under way is stored and may commit."""
    with reported_admin():
        _print_tasks([admin_client(admin).control(task, "pause")], as_json, one=True)


@task_app.command()
def resume(task: TaskName, admin: Admin = None, as_json: AsJson = False) -> None:
    """Go on with a task that is paused, whoever paused it."""
    with reported_admin():
        _print_tasks([admin_client(admin).control(task, "resume")], as_json, one=True)


@task_app.command()
def deadline(task: TaskName, admin: Admin = None, as_json: AsJson = False) -> None:
    """End the open round now; it commits if it has `min_reports` updates, else it is abandoned."""
    with reported_admin():
        from fedlens.reports import task_report

        client = admin_client(admin)
        _print_tasks([client.control(task, "deadline")], as_json, one=True)
        if not as_json:
            typer.echo(task_report.last_end(client.show(task)))


@task_app.command("set")
def change(
    task: TaskName,
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")],
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Change settings of a task that goes on, those on which no client's work depends."""
    with reported_admin():
        from fedlens.reports import task_report

        changes = dict(named_value(entry, "KEY=VALUE") for entry in settings)
        client = admin_client(admin)
        before = {each.id: each for each in client.tasks()}
        changed = client.change(task, json.dumps(changes))
        _print_tasks([changed], as_json, one=True)
        for line in task_report.changes(before[changed.id], changed, changes) if not as_json else ():
            typer.echo(line)


@task_app.command()
def rollback(
    task: TaskName,
    number: Annotated[int, typer.Argument(metavar="ROUND", min=1, help="One of the last three committed rounds.")],
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Go back to the model as it was after a round; later rounds become undone, the open one is abandoned."""
    with reported_admin():
        _print_tasks([admin_client(admin).to_round(task, "rollback", number)], as_json, one=True)


@task_app.command()
def release(
    task: TaskName,
    number: Annotated[
        int, typer.Argument(metavar="[ROUND]", min=0, help="One of the last three committed rounds; 0: the last one.")
    ] = 0,
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Have clients predict with the model after a round, for tasks with release="manual"."""
    with reported_admin():
        _print_tasks([admin_client(admin).to_round(task, "release", number)], as_json, one=True)


@task_app.command()
def model(
    task: TaskName,
    out: Annotated[
        Path | None, typer.Option(help="File for the trained tensors; a name in .safetensors gives that format.")
    ] = None,
    whole: Annotated[
        Path | None,
        typer.Option(
            help="File for the whole model, from photos to logits, for use without FedLens: .pt2 (torch.export), .onnx "
            "or .pte (ExecuTorch)."
        ),
    ] = None,
    bundle: Annotated[Path, typer.Option(help="For --whole: folder of the task's bundle.")] = Path("bundle"),
    admin: Admin = None,
    as_json: AsJson = False,
) -> None:
    """Write a task's global model to a file."""
    with reported_admin():
        from fedlens.admin_client import AdminError
        from fedlens.model_file import fetch_model, fetch_whole

        metadata = None
        if out is not None and whole is None:
            found = fetch_model(admin_client(admin), task, out)
        elif whole is not None and out is None:
            found, metadata = fetch_whole(admin_client(admin), task, bundle, whole)
        else:
            raise AdminError("name one file: --out for the trained tensors, or --whole for the whole model")
        file = out or whole
        values = {
            "file": str(file),
            "bundle": found.bundle.hex(),
            "round": found.round,
            "classes": list(found.class_names),
            "blob": found.blob_sha256.hex(),
            "extractors": {extractor.name: extractor.blob_sha256.hex() for extractor in found.extractors},
        }
        if as_json:
            print_json(values if metadata is None else values | {"metadata": dict(metadata)})
            return
        what = "model" if metadata is None else "whole model"
        when = f"after round {found.round}" if found.round else "with its initial weights, untrained by any round"
        typer.echo(f"wrote {file}: the {what} of {task} {when}, {len(found.class_names)} classes")
        if metadata is not None:
            shown = ("input", "preprocessing", "output", "classes")
            typer.echo("; ".join(f"{key}: {metadata[key]}" for key in shown))


def _print_tasks(tasks: list[Any], as_json: bool, one: bool = False) -> None:
    from fedlens.reports import task_report
    from fedlens.reports.tables import print_table

    listed = [task_report.task_values(task) for task in tasks]
    if as_json:
        print_json(listed[0] if one else listed)
        return
    print_table(task_report.TASK_COLUMNS, map(task_report.task_row, listed))
    if one:
        number = listed[0]["released_round"]
        released = number and f"released: round {number}"
        for line in filter(None, (task_report.privacy_line(listed[0]), released, *listed[0]["notices"])):
            typer.echo(line)
