"""The code blocks of `docs/android.md`: files of `android_demo/example`, which Maven compiles.

`make docs` (`python -m tests.android.guide`) writes them anew.
"""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
GUIDE = REPOSITORY / "docs" / "android.md"
EXAMPLE = REPOSITORY / "android_demo" / "example" / "src" / "main"
_CODE = re.compile(r"<!-- code: (?P<path>\S+) -->\n(?:```\w+\n(?P<text>.*?)```\n)?", re.DOTALL)
_LANGUAGES = {".kt": "kotlin", ".xml": "xml"}


def code_blocks() -> dict[str, str]:
    """The code of the guide, by the path that it names."""
    return {found["path"]: found["text"] or "" for found in _CODE.finditer(GUIDE.read_text(encoding="utf-8"))}


def write() -> None:
    """Write the files as they are now into the guide."""
    GUIDE.write_text(_CODE.sub(_block, GUIDE.read_text(encoding="utf-8")), encoding="utf-8")


def _block(found: re.Match[str]) -> str:
    path = EXAMPLE / found["path"]
    text = path.read_text(encoding="utf-8")
    return f"<!-- code: {found['path']} -->\n```{_LANGUAGES[path.suffix]}\n{text}```\n"


if __name__ == "__main__":
    write()
