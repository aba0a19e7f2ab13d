import numpy as np
import pytest

from fedlens_server.methods.fedavgm import with_momentum
from fedlens_server.planning.task_settings import SettingsError
from tests.server.fakes import ALICE
from tests.server.methods.tasks import after, begun, made, update
from tests.server.networks import weights


def test_half_of_the_last_velocity_is_added_to_the_change() -> None:
    # v' = 0.5 * -2 + (1 - 4) = -4; w' = 1 - -4 = 5
    one, four, minus_two = (np.array([value], np.float32) for value in (1.0, 4.0, -2.0))

    w, v = with_momentum(one, four, minus_two, 0.5)

    np.testing.assert_array_equal(w, [5.0])
    np.testing.assert_array_equal(v, [-4.0])


def test_a_second_round_goes_further_than_the_clients_did() -> None:
    method = made("fedavgm", options={"momentum": 0.5})

    first = after(method, begun(method), [update(ALICE, weights(2.0))])
    second = after(method, first, [update(ALICE, weights(2.0))])

    # v = 0 - 2 = -2, w = 2; then v = 0.5 * -2 + (2 - 2) = -1, w = 3. BatchNorm's running mean is the clients'.
    np.testing.assert_array_equal(first.shared["global"]["fc.bias"], [2.0, 2.0])
    np.testing.assert_array_equal(second.shared["global"]["fc.bias"], [3.0, 3.0])
    np.testing.assert_array_equal(second.shared["global"]["bn.mean"], [2.0, 2.0])


def test_a_momentum_above_1_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"options.momentum: found 1.5, must be a number, 0 to 1"):
        made("fedavgm", options={"momentum": 1.5})
