"""Accounting of central privacy: epsilon of the Gaussian mechanism, exactly.

Paper: Balle, Wang, ICML 2018, https://arxiv.org/abs/1805.06530, Theorem 8 (Equation 6).

    paper        here      meaning
    sigma/Delta  noise     deviation of the noise, as a multiple of the largest change of the sum by one client
    epsilon      epsilon   privacy loss that is exceeded only with probability about delta
    delta        delta     that probability
    -            times     releases in which one client takes part

Releases with independent noise are one: the vector of k sums, each with its own N(0, z^2), differs by a vector of norm
at most sqrt(k), whatever was chosen after seeing the earlier sums. So k releases with z are one with z / sqrt(k).
"""

from functools import cache
from importlib import import_module
from math import expm1, inf, log, sqrt
from typing import Any


def log_delta(epsilon: float, noise: float) -> float:
    """The logarithm of the least delta at which the mechanism with this noise is (epsilon, delta)-private.

    `delta = Phi(1 / (2 z) - epsilon z) - e^epsilon Phi(-1 / (2 z) - epsilon z)`, whose terms leave the range of
    floating-point numbers long before their quotient does.

    Source: Balle and Wang 2018, Equation 6.
    """
    special: Any = import_module("scipy.special")  # late: it takes a moment, and ships no types
    minuend = float(special.log_ndtr(1 / (2 * noise) - epsilon * noise))
    subtrahend = epsilon + float(special.log_ndtr(-1 / (2 * noise) - epsilon * noise))
    # Where both are the same number, their difference is below its last digit.
    return minuend + log(-expm1(subtrahend - minuend)) if subtrahend < minuend else -inf


@cache
def epsilon_of(noise: float, delta: float, times: int = 1) -> float:
    """The least epsilon at delta for a client that takes part in so many releases; 0 for none.

    Args:
        noise: Deviation of each release's noise as a multiple of the clipping norm, above 0.
        delta: Above 0, below 1.
        times: Releases, 0 or more.
    """
    if times == 0:
        return 0.0
    together, wanted = noise / sqrt(times), log(delta)
    if log_delta(0.0, together) <= wanted:
        return 0.0
    most = 1.0
    while log_delta(most, together) > wanted:
        most *= 2
    optimize: Any = import_module("scipy.optimize")
    return float(optimize.brentq(lambda epsilon: log_delta(epsilon, together) - wanted, 0.0, most, xtol=1e-12))
