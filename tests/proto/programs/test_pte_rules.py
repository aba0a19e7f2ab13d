"""Kernels, backends, instructions and memory that a `.pte` may have."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedlens_export.errors import NotExportable
from fedlens_export.programs import lowering, pte_program
from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte_plan, pte_rules, pte_runtime
from fedlens_proto.programs.pte_plan import XNNPACK, Plan

PLAN = Plan(
    portable={"aten.mul.out": 2},
    delegated={"Add": 1},
    delegate_calls=1,
    planned_bytes=1000,
    segment_bytes=1000,
    backends={XNNPACK},
    other_instructions=set(),
)


def _at_a_pixel(photo: Tensor) -> tuple[Tensor, ...]:
    """Read at a place that a pixel names: at 0 for the photos of a trial, and far away for a brighter one."""
    place = (photo[0, :1] * 1e6).floor().to(torch.int64) * (photo[0, :1] > 1)
    return (torch.gather(photo[0], 0, place),)


@pytest.mark.slow
def test_a_program_that_reads_where_a_pixel_says_is_not_lowered() -> None:
    program = lowering.trace("embed", _at_a_pixel, [torch.zeros(1, 4)])

    with pytest.raises(NotExportable, match=r"kernel 'aten\.gather\.out' is not among those that programs use"):
        pte_program.lower("embed", program)


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        *(
            (replace(PLAN, portable={"aten.mul.out": 1, kernel: 1}), f"kernel '{kernel}' is not among")
            for kernel in (
                "aten.gather.out",
                "aten.index.Tensor_out",
                "aten.index_put.out",
                "aten.index_select.out",
                "aten.embedding.out",
                "aten.scatter.value_out",
                "aten.scatter_add.out",
                "aten.select_scatter.out",
                "aten.nonzero.out",
                "aten.max_pool2d_with_indices_backward.grad_input",
                "aten.empty.out",
                "aten.as_strided_copy.out",
                "executorch_prim.add.Scalar",
                "dim_order_ops._empty_dim_order.out",
            )
        ),
        (replace(PLAN, backends={XNNPACK, "OtherBackend"}), "backend 'OtherBackend' is not among"),
        (replace(PLAN, other_instructions={4}), "instruction of kind '4' is not among"),
        (replace(PLAN, planned_bytes=2 << 30), "plans 2147483648 bytes of memory; at most 1073741824 are allowed"),
    ],
)
def test_a_plan_is_refused_for(plan: Plan, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pte_plan, "read", lambda raw: plan)

    with pytest.raises(ProgramRefused) as refused:
        pte_rules.check(b"")

    assert reason in str(refused.value)


def test_the_runtime_has_every_kernel_that_is_allowed() -> None:
    registered = set(pte_runtime.library()._get_operator_names())
    names = {name for text in pte_rules.KERNELS.values() for name in text.split()}

    missing = {name for name in names if not {name.replace(".", "::", 1), name.replace(".", "::", 1)[:-8]} & registered}

    # Another library has these, which another test may have loaded.
    assert missing <= {name for name in names if name.startswith("quantized_decomposed")}
