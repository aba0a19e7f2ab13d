"""The last answers to check-ins, so that operators see why a client has no work; in memory, since the server's start.

At most `MOST_CLIENTS` are kept, those that were answered last, as one integer each: clients by the first half of their
id, the time in seconds, and one of few different words about a task. A text beside it is kept for its client alone:
clients choose numbers in theirs, and must not fill the place of others'.
"""

from collections import Counter
from threading import Lock
from typing import NamedTuple

MOST_CLIENTS = 200_000
MOST_ANSWERS = 4096
RESERVE = 64  # of them, for words alone
_ID_BYTES = 16


class Answer(NamedTuple):
    """An answer to a check-in: a word such as `wait-rest`, the task that it is about, 0 for none, a text beside it."""

    word: str
    task: int
    detail: str = ""


class Answers:
    """The last answer to each client. Noted on one thread, forgotten on another; others read it at any time."""

    def __init__(self) -> None:
        """Nobody was answered yet."""
        self._changing = Lock()
        self._last: dict[int, int] = {}  # seconds and an index, by client; those answered last are last
        self._details: dict[int, str] = {}  # by client, of those whose answer has one
        self._different: list[Answer] = []
        self._index: dict[Answer, int] = {}

    def note(self, client: bytes, answer: Answer, now: float) -> None:
        """Note what a client is told, `now` by `Clock.now`."""
        detail, answer = answer.detail, answer._replace(detail="")
        if answer not in self._index and len(self._different) >= MOST_ANSWERS - RESERVE:
            answer = Answer(answer.word, 0)  # of too many tasks; there are few words, so these fit
        index = self._index.get(answer)
        if index is None:
            index = self._index[answer] = len(self._different)
            self._different.append(answer)
        key = _key(client)
        with self._changing:
            self._drop(key)
            self._last[key] = int(now) * MOST_ANSWERS + index
            if detail:
                self._details[key] = detail
            if len(self._last) > MOST_CLIENTS:
                self._drop(next(iter(self._last)))

    def forget(self, client: bytes) -> None:
        """Forget a client."""
        with self._changing:
            self._drop(_key(client))

    def last(self, client: bytes) -> tuple[Answer, float] | None:
        """What a client was told last, and when, in seconds since the epoch; None: nothing that is known."""
        key = _key(client)
        with self._changing:
            value, detail = self._last.get(key), self._details.get(key, "")
        if value is None:
            return None
        return self._different[value % MOST_ANSWERS]._replace(detail=detail), float(value // MOST_ANSWERS)

    def counts(self, task: int, since: float) -> dict[str, int]:
        """The number of clients by the word that they were last told about a task, since a time."""
        first = int(since) * MOST_ANSWERS
        found = Counter(value % MOST_ANSWERS for value in self._last.copy().values() if value >= first)
        words: Counter[str] = Counter()
        for index, count in found.items():
            if self._different[index].task == task:
                words[self._different[index].word] += count
        return dict(words.most_common())

    def _drop(self, key: int) -> None:
        self._last.pop(key, None)
        self._details.pop(key, None)


def _key(client: bytes) -> int:
    return int.from_bytes(client[:_ID_BYTES])
