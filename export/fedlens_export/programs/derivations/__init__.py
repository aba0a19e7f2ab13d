"""Programs that derive tables or weights, and further ones that predict: one file a program, or a paper's.

A new one adds a line to `DERIVATIONS`. They import `objectives` and `programs/steps.py`, and no draft or bundle. Begin
with `derivation.py`.
"""

from fedlens_export.choices import chosen
from fedlens_export.programs.derivations.blend import BLEND
from fedlens_export.programs.derivations.class_means import CLASS_MEANS, CLASS_SUMS, PREDICT_NEAREST
from fedlens_export.programs.derivations.compare import COMPARE
from fedlens_export.programs.derivations.derivation import Derivation
from fedlens_export.programs.derivations.dual_update import DUAL_UPDATE
from fedlens_export.programs.derivations.gain import GAIN
from fedlens_export.programs.derivations.importance import IMPORTANCE
from fedlens_export.programs.derivations.least import LEAST
from fedlens_export.programs.derivations.norm_statistics import NORM_STATISTICS, NORM_SUMS
from fedlens_export.programs.derivations.predictions import PREDICTIONS, SCORES

OF_CANDIDATES = (COMPARE, LEAST, IMPORTANCE, GAIN, BLEND)
"""In every bundle with candidates, and in no other."""

DERIVATIONS = {
    derivation.name: derivation
    for derivation in (
        *(CLASS_SUMS, CLASS_MEANS, PREDICT_NEAREST),
        *(PREDICTIONS, SCORES),
        *(NORM_SUMS, NORM_STATISTICS),
        DUAL_UPDATE,
    )
}
"""Those that an objective or an export names."""


def by_name(name: str) -> Derivation:
    """A program: of `DERIVATIONS`, of an installed package, or `module:NAME`, whose module is imported.

    Raises:
        UnknownChoice: There is none of that name, or its package is missing or faulty.
    """
    return chosen("program", name, Derivation, DERIVATIONS)
