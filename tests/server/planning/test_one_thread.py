"""One thread for numerical libraries."""

from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from fedlens_server.planning.one_thread import use_one_thread
from tests.server.fakes import Bench


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_a_server_or_study_has_one_thread_for_sums(tmp_path: Path) -> None:
    with threadpool_limits(2):
        before = blas_threads()
        Bench(tmp_path).close()
        after = blas_threads()

    assert before == {2}
    assert after == {1}


def test_sums_do_not_depend_on_the_number_of_threads_that_there_were() -> None:
    vector = np.random.default_rng(1).standard_normal(1 << 16)
    sums = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            use_one_thread()
            sums.append(float(vector @ vector))

    assert sums[0] == sums[1]
