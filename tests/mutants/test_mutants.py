"""Mutants are drawn by seed, made in a copy alone, and found again by what they change."""

from pathlib import Path

import pytest

from tests.mutants.draw import draw, shares
from tests.mutants.finding import Record, Tree, record
from tests.mutants.operators import functions
from tests.mutants.run import changed, copied, lost, read, run

BEFORE = '''
class Desk:
    def admit(self, client: bytes, known: set[bytes]) -> bool:
        """More than 3 words."""
        if client not in known and len(known) < self.most:
            return False
        if self.state == FAILED:
            raise Refused(f"{len(known) + 1} are too many") if len(known) > 5 else Closed
        log.info("%d admitted", len(known) - 1)
        return self.state == OPEN
'''
AFTER = '''
OTHER = 1


class Counter:
    def let_in(self, client: bytes, members: set[bytes]) -> bool:
        """Another text."""
        if self.phase == FAILED:
            raise Refused("too many")
        if client not in members and len(members) < self.most:
            return False
        return self.phase == OPEN
'''
SPLIT = "def is_new(client, known, most):\n    return client not in known and len(known) < most\n"
GONE = "gone"
RENAMED = {
    "words": {"Desk": "Counter", "known": "members", "state": "phase"},
    "functions": {"Desk.admit": "Counter.let_in"},
}


def tree(root: Path, source: str, renamed: dict[str, dict[str, str]]) -> Tree:
    path = root / "edge_client" / "rooms" / "counter.py"
    path.parent.mkdir(parents=True)
    path.write_text(source, encoding="utf-8")
    return Tree(root, renamed)


def drawn(change: str, source: str = BEFORE) -> list[Record]:
    """The records of every operator of a change in the only function of a text."""
    (found,) = functions("server/desk.py", source)
    indices = [i for i, operator in enumerate(found.operators) if operator.change == change]
    return [{"id": f"{number:03}", **record(found, index)} for number, index in enumerate(indices, 1)]


def place(later: Tree, kept: Record) -> str:
    """The function and the operator that are found, or `GONE`."""
    found = later.find(kept)
    if isinstance(found, str):
        assert found.startswith("most alike is edge_client/rooms/counter.py:")
        return GONE
    return f"{found[0].name}: {found[1].expression}"


@pytest.mark.parametrize(
    ("line", "mutants"),
    [
        ("x = a <= b", ["x = (a < b)"]),
        ("x = ä is not None", ["x = (ä is None)"]),
        ("x = a == b in c", ["x = (a != b in c)", "x = (a == b not in c)"]),
        ("x = a and not b(c)", ["x = (a or not b(c))", "x = a and (b(c))"]),
        ("a -= b // c", ["a += b // c", "a -= (b % c)"]),
        ("return True", ["return False"]),
        ("x: Literal[1] = min(a[b : 2], c)", ["x: Literal[1] = max(a[b : 2], c)", "x: Literal[1] = min(a[b : 3], c)"]),
        ("x = [1] + a", ["x = [2] + a"]),
        ("assert a < b", []),
        ("warnings.warn(a + b)", []),
        ("x = TheError(a + b)", []),
    ],
)
def test_each_operator_of_a_function_gives_a_mutant_but_for_those_of_messages(line: str, mutants: list[str]) -> None:
    source = f"y = 1 + z\ndef f(a=1):\n    {line}\n"

    (function,) = functions("server/a.py", source)

    made = [operator.mutant(source) for operator in function.operators]
    assert made == [source.replace(line, mutant) for mutant in mutants]


def test_a_draw_is_that_of_its_seed_and_takes_of_each_file_its_share() -> None:
    # BEFORE has 6 operators: not in, and, <, return False, and == twice; so two files of it have 12, and each gives 2.
    sources = {"server/a.py": BEFORE, "server/b.py": BEFORE}

    first = draw(sources, seed=1, count=4)

    assert first == draw(sources, seed=1, count=4) != draw(sources, seed=2, count=4)
    assert [one["id"] for one in first] == ["001", "002", "003", "004"]
    assert [one["path"] for one in first] == ["server/a.py"] * 2 + ["server/b.py"] * 2


def test_what_is_left_over_goes_to_the_largest_remainders() -> None:
    # 7 of 20: 10 * 7 / 20 = 3.5, 7 * 7 / 20 = 2.45 and 3 * 7 / 20 = 1.05, so the seventh is for the first.
    assert shares({"a": 10, "b": 7, "c": 3}, 7) == {"a": 4, "b": 2, "c": 1}


@pytest.mark.parametrize(
    ("change", "later", "renamed", "expected"),
    [
        ("not in to in", AFTER, RENAMED, ["Counter.let_in: client not in members"]),
        ("and to or", AFTER, RENAMED, ["Counter.let_in: client not in members and len(members) < self.most"]),
        ("< to <=", AFTER, RENAMED, ["Counter.let_in: len(members) < self.most"]),
        ("return False to True", AFTER, RENAMED, ["Counter.let_in: return False"]),
        # Of several alike the one with the same operands.
        ("== to !=", AFTER, RENAMED, ["Counter.let_in: self.phase == FAILED", "Counter.let_in: self.phase == OPEN"]),
        # A class may have another name that no table has, a function may not.
        ("< to <=", BEFORE.replace("Desk", "Counter"), {}, ["Counter.admit: len(known) < self.most"]),
        ("< to <=", BEFORE.replace("admit", "let_in"), {}, [GONE]),
        # What is rewritten is gone; the other == is another.
        ("== to !=", BEFORE.replace("state == FAILED", "failed"), {}, [GONE, "Desk.admit: self.state == OPEN"]),
        ("== to !=", BEFORE.replace("== FAILED", "!= FAILED"), {}, [GONE, "Desk.admit: self.state == OPEN"]),
        ("== to !=", "def admit(client, seats):\n    if seats.state == FAILED:\n        client()\n", {}, [GONE, GONE]),
        # Where a function was split, the table says by id where an operator went.
        ("not in to in", SPLIT, {}, [GONE]),
        ("not in to in", SPLIT, {"functions": {"001": "is_new"}}, ["is_new: client not in known"]),
    ],
)
def test_an_operator_is_found_after_a_move_and_renames_unless_it_is_gone(
    tmp_path: Path, change: str, later: str, renamed: dict[str, dict[str, str]], expected: list[str]
) -> None:
    later_tree = tree(tmp_path, later, renamed)

    assert [place(later_tree, kept) for kept in drawn(change)] == expected


def test_one_of_two_with_the_same_text_is_gone_when_there_is_one(tmp_path: Path) -> None:
    twice = "def f(a, b):\n    if a < b:\n        go(a)\n    stop(b)\n    if a < b:\n        go(b)\n"
    both = drawn("< to <=", twice)
    same = tree(tmp_path / "same", twice, {})
    once = tree(tmp_path / "once", twice.replace("    if a < b:\n        go(b)\n", ""), {})

    assert [found[1].lines for kept in both if not isinstance(found := same.find(kept), str)] == [(2, 2), (5, 5)]
    assert [place(once, kept) for kept in both] == [GONE, GONE]


def test_a_mutant_is_imported_from_the_copy_and_the_tree_stays_as_it_is(tmp_path: Path) -> None:
    for path in ("proto/fedlens_proto", "server/fedlens_server", "edge_client/fedlens_edge_client"):
        (tmp_path / "tree" / path).mkdir(parents=True)
        (tmp_path / "tree" / path / "__init__.py").write_text("X = 1 + 2\n", encoding="utf-8")
    show = ["-c", "import fedlens_proto; print(fedlens_proto.X)"]

    with copied(tmp_path / "tree") as copy:
        with changed(copy / "proto" / "fedlens_proto" / "__init__.py", "X = 1 - 2\n"):
            mutant = run(copy, show)
        restored = run(copy, show)

    assert (mutant, restored) == ((0, "-1\n"), (0, "3\n"))
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_only_what_was_noticed_before_and_is_not_now_counts_as_lost(tmp_path: Path) -> None:
    lines = ('{"id": "1", "noticed": "no"}', '{"id": "2", "noticed": "timeout"}', '{"id": "1", "noticed": "yes"}')
    (tmp_path / "before.jsonl").write_text("\n".join(lines), encoding="utf-8")
    before = read(tmp_path / "before.jsonl") | {"3": "noticed", "4": "unnoticed"}

    assert before == {"1": "noticed", "2": "noticed", "3": "noticed", "4": "unnoticed"}
    assert lost(before, {"1": "noticed", "2": "unreached", "3": "gone", "4": "unnoticed"}) == (["2"], ["3"])
