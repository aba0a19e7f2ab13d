from pathlib import Path

import pytest
from typer.testing import Result

from fedlens_edge_client.emulation.fleet import session
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from tests.edge_client.photo_folders import write_clients, write_files
from tests.fedlens.commands.cli import error_text, fedlens

PHOTOS = {"cat": 40, "dog": 40}


def fleet(tmp_path: Path, *options: str, photos: Path | str | None = None) -> Result:
    folder = photos or write_files(tmp_path / "photos", PHOTOS)
    command = ("fleet", "--server", "https://127.0.0.1:1", "--state", tmp_path / "state", "--photos", folder)
    return fedlens(*command, *options)


def test_an_option_of_another_partition_is_refused_with_what_this_one_has(tmp_path: Path) -> None:
    told = error_text(fleet(tmp_path, "--partition", "dirichlet", "--sigma", "0.1"), status=2)

    assert "--sigma" in told
    assert "partition dirichlet has no such option; it has --beta, --min-photos, --test-photos" in told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--partition", "dirichlet", "--beta", "0"], "beta of partition dirichlet is 0.0; allowed is more than 0"),
        (["--partition", "dirichlet", "--clients", "50"], "photos are too few for 50 clients with at least 10 each"),
        (["--partition", "classes", "--classes-per-client", "3"], "3 classes per client, but there are 2"),
        (["--per-class", "30"], "class 'cat' has 32 train photos"),
    ],
)
def test_a_partition_that_cannot_be_served_is_refused_before_anything_starts(
    tmp_path: Path, options: list[str], told: str
) -> None:
    assert told in error_text(fleet(tmp_path, *options))


OWNED = {owner: {"cat": 4, "dog": 4} for owner in ("anna", "ben", "carl", "dora", "eve")}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[FleetConfig]:
    """The fleets that the command would run; none is run."""
    fleets: list[FleetConfig] = []

    def run_session(config: FleetConfig, console: object) -> int:
        del console
        fleets.append(config)
        return 0

    monkeypatch.setattr(session, "run_session", run_session)
    return fleets


@pytest.mark.parametrize(
    ("options", "clients"),
    [
        (["--partition", "clients"], 5),
        # A fifth of five people is one.
        (["--partition", "clients", "--unseen", "0.2"], 4),
        (["--partition", "clients", "--unseen", "0.2", "--clients", "2"], 2),
        (["--per-class", "2"], 20),
    ],
)
def test_there_are_as_many_clients_as_people_unless_it_is_said_otherwise(
    tmp_path: Path, started: list[FleetConfig], options: list[str], clients: int
) -> None:
    result = fleet(tmp_path, *options, photos=write_clients(tmp_path / "people", OWNED))

    assert (result.exit_code, result.stderr) == (0, "")
    assert [config.clients for config in started] == [clients]
    assert started[0].partition.clients_of(started[0].pool) == clients


def test_a_table_is_taken_for_photos(tmp_path: Path, started: list[FleetConfig]) -> None:
    root = write_clients(tmp_path / "people", OWNED)
    rows = [f"{path.relative_to(root)},{path.parts[-3]}" for path in root.rglob("*.png") if "eve" not in path.parts]
    (root / "mine.csv").write_text("\n".join(["file,client", *rows]))

    result = fleet(tmp_path, "--partition", "clients", photos=root / "mine.csv")

    assert (result.exit_code, result.stderr) == (0, "")
    assert started[0].pool.owners == ("anna", "ben", "carl", "dora")


@pytest.mark.parametrize(
    ("people", "options", "told"),
    [
        (OWNED, ["--clients", "6"], "6 clients are too many for 5 people or devices with photos to train on"),
        (OWNED, ["--unseen", "1"], "unseen of partition clients is 1.0; allowed is 0 or more and less than 1"),
        (OWNED | {"finn": {"cat": 1}}, [], "client 'finn' has 1 photo in"),
        ({".": PHOTOS}, [], "does not say whose photos these are, which partition clients needs: put them into"),
    ],
)
def test_people_of_whom_no_fleet_can_be_made_are_told_in_one_line(
    tmp_path: Path, people: dict[str, dict[str, int]], options: list[str], told: str
) -> None:
    photos = write_clients(tmp_path / "people", people)

    result = fleet(tmp_path, "--partition", "clients", *options, photos=photos)

    assert told in error_text(result)
    assert result.stderr.count("\n") == 1


def test_a_source_that_is_not_there_is_told_with_what_there_is(tmp_path: Path) -> None:
    told = error_text(fleet(tmp_path, photos="cifar11"))

    assert "cifar11 is no folder" in told
    assert "fashion-mnist" in told


@pytest.mark.parametrize(
    ("option", "names", "told"),
    [
        *(("--models", names, "must be names with commas between") for names in ("", "resnet18,", "a,,b")),
        *(("--engine", names, "must be torch or executorch, or several") for names in ("", "onnx", "torch,")),
    ],
)
def test_a_list_with_a_name_that_there_is_not_is_refused(tmp_path: Path, option: str, names: str, told: str) -> None:
    assert told in error_text(fleet(tmp_path, option, names), status=2)


@pytest.mark.parametrize(
    ("options", "indices"),
    [
        (["--per-class", "2", "--clients", "2"], [0, 1]),
        (["--per-class", "2", "--first", "4", "--clients", "2"], [4, 5]),
        (["--per-class", "2", "--first", "17", "--of", "20"], [17, 18, 19]),
        (["--partition", "clients", "--first", "3", "--of", "5"], [3, 4]),
    ],
)
def test_a_part_of_a_fleet_has_the_clients_from_the_first_on(
    tmp_path: Path, started: list[FleetConfig], options: list[str], indices: list[int]
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "fleet.key").write_text("5a" * 32 + "\n")

    result = fleet(tmp_path, *options, photos=write_clients(tmp_path / "people", OWNED))

    assert (result.exit_code, result.stderr) == (0, "")
    assert [config.indices for config in started] == [indices]


@pytest.mark.parametrize(
    ("options", "status", "told"),
    [
        (["--first", "3", "--of", "3"], 2, "the first client is 3, the last one 2, but there are 0 to 2"),
        (["--first", "2", "--clients", "3", "--of", "4"], 2, "the last one 4, but there are 0 to 3"),
        (["--first", "2", "--partition", "dirichlet"], 2, "say how many all machines have"),
        (["--first", "2", "--clients", "3"], 1, "fleet.key is missing; copy that of the part with --first 0"),
    ],
)
def test_a_part_that_cannot_be_one_is_refused(tmp_path: Path, options: list[str], status: int, told: str) -> None:
    assert told in error_text(fleet(tmp_path, "--seed", "1", *options), status=status)
