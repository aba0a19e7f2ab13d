from pathlib import Path

import pytest

from fedlens_edge_client.emulation.partitions import PhotoPool, PoolUnusable
from tests.edge_client.photo_folders import write_files

COUNTS = {"cat": 6, "dog": 6}


def table(root: Path, *lines: str, name: str = "people.csv") -> Path:
    """A table with these lines beside photos/cat/0000.png to 0005.png and as many dogs."""
    write_files(root / "photos", COUNTS)
    path = root / name
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def rows() -> list[str]:
    """All photos, by turns anna's and ben's."""
    return [f"photos/{label}/{i:04}.png,{('anna', 'ben')[i % 2]}" for label, n in COUNTS.items() for i in range(n)]


@pytest.mark.parametrize(("name", "column"), [("clients.csv", "client"), ("people.csv", "person")])
def test_a_folder_with_a_table_is_read_by_it(tmp_path: Path, name: str, column: str) -> None:
    table(tmp_path, f"file,{column}", *rows(), name=name)

    pool = PhotoPool.open(tmp_path)

    assert pool.root == tmp_path
    assert pool.owners == ("anna", "ben")
    assert pool.class_names == ("cat", "dog")
    # Even numbers are anna's.
    for photo in [photo for side in (*pool.train, *pool.test) for photo in side]:
        assert photo.owner == ("anna", "ben")[int(photo.path.stem) % 2]


def test_a_table_of_another_name_is_given_itself(tmp_path: Path) -> None:
    path = table(tmp_path, "file,client", *rows(), name="mine.CSV")

    assert PhotoPool.open(path).owners == ("anna", "ben")


def test_the_rows_are_the_pool_in_the_order_of_paths(tmp_path: Path) -> None:
    table(tmp_path, "file,person", *reversed(rows()[1:]))

    pool = PhotoPool.open(tmp_path)

    # The first cat has no row.
    assert sum(map(len, (*pool.train, *pool.test))) == 11
    for members in (*pool.train, *pool.test):
        assert list(members) == sorted(members, key=lambda photo: photo.path)


def test_a_table_may_name_cameras_and_have_other_columns_in_any_order(tmp_path: Path) -> None:
    table(tmp_path, "camera,age,person,file", *(f"iPhone 7,9,{owner},{file}" for file, owner in map(pair, rows())))

    pool = PhotoPool.open(tmp_path)

    assert {photo.camera for side in (*pool.train, *pool.test) for photo in side} == {"iPhone 7"}


def test_a_table_as_spreadsheets_write_it_is_read(tmp_path: Path) -> None:
    path = table(tmp_path)
    path.write_bytes("\r\n".join(["file,person", *(f'"{f}","{o}"' for f, o in map(pair, rows()))]).encode("utf-8-sig"))

    assert PhotoPool.open(tmp_path).owners == ("anna", "ben")


def test_equal_files_are_numbered_over_the_table(tmp_path: Path) -> None:
    path = table(tmp_path, "file,person", *rows(), "photos/cat/copy.png,ben")
    (tmp_path / "photos/cat/copy.png").write_bytes((tmp_path / "photos/cat/0000.png").read_bytes())

    pool = PhotoPool.open(path)

    entries = [(photo.digest, photo.copy) for side in (*pool.train, *pool.test) for photo in side]
    assert len(set(entries)) == 13
    assert [copy for _, copy in entries].count(1) == 1


def test_rows_of_files_that_are_no_photos_are_left_out_and_named(tmp_path: Path) -> None:
    path = table(tmp_path, "file,person", *rows(), "photos/cat/notes.txt,ben", "photos/cat/1.heic,ben")
    (tmp_path / "photos/cat/notes.txt").touch()
    (tmp_path / "photos/cat/1.heic").touch()

    assert sorted(PhotoPool.open(path).skipped.values()) == [("photos/cat/1.heic",), ("photos/cat/notes.txt",)]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "photos/cat/gone.png,anna",
            r"row 14: there is no file .*photos/cat/gone\.png; put it there, or remove the row",
        ),
        ("photos/cat,anna", r"row 14: there is no file .*photos/cat; "),
        (
            "photos/cat/../cat/0000.png,ben",
            r"row 14: 'photos/cat/\.\./cat/0000\.png' is in row 2 already; leave one of",
        ),
        ("photos/cat/new.png,", r"row 14: column `person` is empty; say whose photo 'photos/cat/new\.png' is"),
        ("photos/cat/new.png", r"row 14: column `person` is empty"),
        (",anna", r"row 14: file '' must be a path inside .*, such as photos/cat/1\.jpg"),
        ("../cat/0000.png,anna", r"row 14: file '\.\./cat/0000\.png' must be a path inside"),
        ("/photos/cat/0000.png,anna", r"row 14: file '/photos/cat/0000\.png' must be a path inside"),
        ("new.png,anna", r"row 14: 'new\.png' is in no folder, whose name would be its class; put it into one"),
        ('"photos/cat/new.png,anna', r"people\.csv cannot be read as a table: .*; save it as CSV in UTF-8"),
    ],
)
def test_a_wrong_row_is_told_with_its_number(tmp_path: Path, line: str, told: str) -> None:
    table(tmp_path, "file,person", *rows(), line)
    for name in ("new.png", "photos/cat/new.png"):
        (tmp_path / name).write_bytes(name.encode())

    with pytest.raises(PoolUnusable, match=told) as raised:
        PhotoPool.open(tmp_path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", r"people\.csv has no column `file`, .*its first line is ''"),
        (b"path,person\n", r"people\.csv has no column `file`, .*its first line is 'path,person'"),
        (b"file;person\n", r"people\.csv has no column `file`, .*its first line is 'file;person'"),
        (b"file,owner\n", r"people\.csv has no column `client` or `person`, .*its first line is 'file,owner'"),
        (b"file,person\n", r"people\.csv has no rows; give each photo one, with its file and its client"),
        (b"file,person\n\n", r"people\.csv has no rows"),
        (b"file,person\nphotos/cat/0000.png,\xe4nna\n", r"people\.csv cannot be read as a table: .*save it as CSV in"),
        (b"\x89PNG\r\n\x1a\n\x00", r"people\.csv cannot be read as a table"),
    ],
)
def test_what_is_no_such_table_is_told(tmp_path: Path, content: bytes, told: str) -> None:
    table(tmp_path).write_bytes(content)

    with pytest.raises(PoolUnusable, match=told) as raised:
        PhotoPool.open(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_table_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PoolUnusable, match=r"nowhere\.csv is no folder"):
        PhotoPool.open(tmp_path / "nowhere.csv")


def pair(row: str) -> tuple[str, str]:
    file, owner = row.split(",")
    return file, owner
