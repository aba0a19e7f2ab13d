"""The tables of `docs/vetting.md`: operators, and why each is safe, as the rules have it.

`make docs` (`python -m tests.vetting_page`) writes them anew.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from fedlens_proto.programs.pt2_rules import RULES
from fedlens_proto.programs.pte_rules import KERNELS

PAGE = Path(__file__).parent.parent / "docs" / "vetting.md"
_TABLE = re.compile(r"<!-- table: (pt2|pte) -->\n(?:\n\|.*?\|\n(?=\n|\Z))?", re.DOTALL)


def table(rows: Iterable[tuple[Iterable[str], str]]) -> str:
    """Names and the reason that they are safe."""
    lines = [f"| {', '.join(f'`{name}`' for name in names)} | {why} |\n" for names, why in rows]
    return "\n| operators | why no arguments make them touch memory that is not theirs |\n|---|---|\n" + "".join(lines)


def written(page: str) -> str:
    """The page with the tables of the rules."""
    tables = {
        "pt2": table((rule.operators, rule.why) for rule in RULES),
        "pte": table((names.split(), why) for why, names in KERNELS.items()),
    }
    return _TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{tables[found[1]]}", page)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
