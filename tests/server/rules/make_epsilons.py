"""Write `epsilons.json` with Google's dp-accounting, to which the server's own accounting is compared.

dp-accounting wants attrs below 24, other packages of ours a newer one, so it has an environment of its own:

    python3 -m venv FOLDER && FOLDER/bin/pip install dp-accounting==0.6.0
    FOLDER/bin/python tests/server/rules/make_epsilons.py
"""

import json
from itertools import product
from math import sqrt
from pathlib import Path

from dp_accounting import get_epsilon_gaussian  # type: ignore[import-not-found]  # see above

NOISES = (0.05, 0.3, 0.5, 1.0, 1.1, 2.0, 4.0, 10.0, 64.0)
DELTAS = (1e-12, 1e-9, 1e-6, 1e-5, 1e-2)
TIMES = (1, 2, 3, 10, 100, 1000)

if __name__ == "__main__":
    rows = [[z, delta, k, get_epsilon_gaussian(z / sqrt(k), delta)] for z, delta, k in product(NOISES, DELTAS, TIMES)]
    lines = ",\n".join(json.dumps(row) for row in rows)
    Path(__file__).with_name("epsilons.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
