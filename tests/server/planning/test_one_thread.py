"""One thread for numerical libraries, for one who wants it at a time."""

from threading import Event, Thread

from threadpoolctl import threadpool_info

from fedlens_server.planning.one_thread import one_thread


def blas_threads() -> list[int]:
    return [each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"]


def test_of_two_at_a_time_each_has_one_thread_and_the_limit_ends_with_them() -> None:
    events, starting = list[object](), Event()

    def other() -> None:
        starting.set()
        with one_thread():
            events.append(set(blas_threads()))

    before = blas_threads()
    with one_thread():
        second = Thread(target=other)
        second.start()
        starting.wait()
        second.join(0.1)  # time in which it would begin, if it did not wait
        events.append("the first ends")
    second.join()

    assert events == ["the first ends", {1}]
    assert blas_threads() == before
