"""Files that are written completely or not at all."""

import os
import stat
from pathlib import Path

import pytest

from fedlens.whole_file import replacing


def write(out: Path, text: str = "new") -> None:
    with replacing(out) as partial:
        partial.write_text(text)


def test_a_file_is_replaced_at_the_end_or_not_at_all(tmp_path: Path) -> None:
    write(tmp_path / "out", "old")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "out") as partial:
        partial.write_text("half")
        _ = 1 / 0

    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out", "old")]


def test_what_a_link_leads_to_is_replaced_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("target")
    write(tmp_path / "link")
    write(tmp_path / "link", "newer")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_text() == "newer"


def test_a_pipe_and_a_device_are_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    for out in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="no regular file"):
            write(out)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


@pytest.mark.parametrize("out", [".", "/", "", "folder"])
def test_a_folder_is_told_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)

    with pytest.raises(IsADirectoryError):
        write(Path(out))
