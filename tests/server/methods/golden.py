"""The worked cases that methods are checked with, where they are at hand: `../shared/golden*` beside the repository."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

FOLDER = Path(__file__).parents[4] / "shared"
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Case:
    """One worked case: what goes in, what must come out, and how closely."""

    name: str
    inputs: Arrays
    outputs: Arrays
    rtol: float
    atol: float

    def check(self, output: str, found: NDArray[Any] | None) -> None:
        assert found is not None
        np.testing.assert_allclose(found, self.outputs[output], self.rtol, self.atol, err_msg=f"{self.name}: {output}")


def cases(kind: str) -> list[Case]:
    """All cases whose name begins so; the test is skipped where there are none."""
    found = [_read(path) for path in sorted(FOLDER.glob(f"golden*/{kind}*.npz"))]
    if not found:
        pytest.skip("the worked cases (../shared/golden*) are not here")
    return found


def _read(path: Path) -> Case:
    with np.load(path) as case:
        meta = json.loads(str(case["meta_json"]))
        inputs = {key.removeprefix("in_"): case[key] for key in case.files if key.startswith("in_")}
        outputs = {key.removeprefix("out_"): case[key] for key in case.files if key.startswith(("out_", "alt_"))}
    return Case(path.stem, inputs, outputs, meta["rtol"], meta["atol"])
