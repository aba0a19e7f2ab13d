"""What clients were last told, for operators."""

from collections.abc import Iterator
from threading import Thread

import pytest

from fedlens_server.engine.arrivals import answers
from fedlens_server.engine.arrivals.answers import Answer, Answers
from tests.server.fakes import ALICE, BOB, CAROL, WatchedLock, client_ids

REST, WORK = Answer("wait-rest", 1), Answer("assignment", 1)


def test_the_last_answer_of_each_client_counts_while_it_is_recent() -> None:
    found = Answers()
    found.note(ALICE, WORK, 100.0)
    found.note(ALICE, REST, 160.5)
    found.note(BOB, REST, 150.0)
    found.note(CAROL, WORK, 170.0)
    found.note(client_ids(6)[5], Answer("wait-rest", 2), 170.0)

    assert found.last(ALICE) == (REST, 160.0)
    assert found.last(bytes(32)) is None
    assert found.counts(1, since=100) == {"wait-rest": 2, "assignment": 1}
    assert found.counts(1, since=155) == {"wait-rest": 1, "assignment": 1}
    assert found.counts(2, since=0) == {"wait-rest": 1}


def test_clients_that_were_answered_long_ago_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_CLIENTS", 2)
    found = Answers()
    for client in (ALICE, BOB, ALICE, CAROL):
        found.note(client, WORK, 1.0)

    assert [found.last(client) is not None for client in (ALICE, BOB, CAROL)] == [True, False, True]


def test_texts_that_a_client_chooses_fill_neither_the_memory_nor_the_place_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answers, "MOST_ANSWERS", 4)
    monkeypatch.setattr(answers, "RESERVE", 1)
    found = Answers()
    for number in range(9):
        found.note(ALICE, Answer("wait-not-eligible", 1, f"{number} photos"), 1.0)
    found.note(BOB, Answer("wait-not-eligible", 1, "9 photos"), 1.0)

    assert found.last(ALICE) == (Answer("wait-not-eligible", 1, "8 photos"), 1.0)
    assert found.last(BOB) == (Answer("wait-not-eligible", 1, "9 photos"), 1.0)
    assert (len(found._different), len(found._details)) == (1, 2)


def test_a_text_goes_with_the_answer_that_it_stood_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_CLIENTS", 1)
    found = Answers()
    for client in (ALICE, BOB):
        found.note(client, Answer("wait-not-eligible", 1, "2 photos"), 1.0)
    kept = len(found._details)
    found.note(BOB, REST, 2.0)

    assert (kept, found.last(BOB), found._details) == (1, (REST, 2.0), {})


def test_answers_about_too_many_tasks_are_noted_without_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_ANSWERS", answers.RESERVE + 2)
    found = Answers()
    for task in (1, 2, 3):
        found.note(ALICE, Answer("assignment", task), float(task))

    assert found.last(ALICE) == (Answer("assignment", 0), 3.0)


def test_a_forgotten_client_leaves_no_answer() -> None:
    found = Answers()
    found.note(ALICE, WORK, 1.0)

    found.forget(ALICE)
    found.forget(ALICE)

    assert found.last(ALICE) is None


def test_a_client_that_is_forgotten_while_room_is_made_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_CLIENTS", 2)
    found = Answers()
    found._changing = lock = WatchedLock()  # type: ignore[assignment]

    def forget() -> None:
        found.forget(BOB)
        lock.wanted.set()

    forgetting = Thread(target=forget)

    class Meeting(dict[int, int]):
        def __iter__(self) -> Iterator[int]:
            oldest = super().__iter__()
            forgetting.start()
            lock.wanted.wait()  # by then it would have changed this dictionary, if it did not wait
            return oldest

    found._last = Meeting()
    for client in (ALICE, BOB, CAROL):
        found.note(client, WORK, 1.0)
    forgetting.join()

    assert [found.last(client) is not None for client in (ALICE, BOB, CAROL)] == [False, False, True]
