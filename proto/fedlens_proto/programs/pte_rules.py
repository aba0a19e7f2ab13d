"""The kernels that `.pte` programs may call, and the memory that they may plan.

A `.pte` has passed a trial before it runs, but a trial has other inputs than training has. So nothing in it may depend
on values but numbers: no kernel reads or writes at places that a tensor names, and no instruction jumps.
"""

from collections.abc import Mapping
from types import MappingProxyType

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pte_plan
from fedlens_proto.programs.pte_plan import XNNPACK

MAX_PLANNED_BYTES = 1 << 30

KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "Elementwise: the runtime compares sizes with the result's, which the program plans.": """
            aten.abs.out aten.add.out aten.add.Scalar_out aten.bitwise_and.Tensor_out aten.clamp.out aten.clone.out
            aten.div.out aten.div.Scalar_out aten.eq.Scalar_out aten.eq.Tensor_out aten.exp.out aten.floor.out
            aten.ge.Scalar_out aten.gt.Scalar_out aten.hardtanh.out aten.le.Scalar_out aten.log.out
            aten.logical_and.out aten.logical_not.out aten.lt.Scalar_out aten.maximum.out aten.minimum.out
            aten.mul.out aten.mul.Scalar_out aten.ne.Scalar_out aten.ne.Tensor_out aten.neg.out
            aten.pow.Tensor_Scalar_out aten.pow.Tensor_Tensor_out aten.relu.out aten.round.out aten.rsqrt.out
            aten.rsub.Scalar_out aten.sigmoid.out aten.sqrt.out aten.sub.out aten.sub.Scalar_out aten.where.self_out
            dim_order_ops._clone_dim_order.out dim_order_ops._to_dim_order_copy.out
            """,
        "They make a tensor of planned size.": """
            aten.arange.out aten.arange.start_out aten.full.out aten.full_like.out aten.ones.out aten.scalar_tensor.out
            aten.zeros.out
            """,
        "Copies and views: dimensions and indices are numbers in the program, and the runtime checks them.": """
            aten.alias_copy.out aten.cat.out aten.constant_pad_nd.out aten.expand_copy.out aten.permute_copy.out
            aten.select_copy.int_out aten.slice_copy.Tensor_out aten.split_with_sizes_copy.out
            aten.squeeze_copy.dims_out aten.stack.out
            aten.t_copy.out aten.transpose_copy.int_out aten.unsqueeze_copy.out aten.view_copy.out
            executorch_prim.et_view.default
            """,
        "Reductions: dimensions are numbers in the program, and the runtime checks them.": """
            aten._log_softmax.out aten.amax.out aten.mean.out aten.sum.IntList_out
            """,
        "The runtime compares the sizes of weights and vectors with the input's channels.": """
            aten._adaptive_avg_pool2d.out aten._native_batch_norm_legit_no_training.out aten.addmm.out aten.bmm.out
            aten.convolution.out aten.max_pool2d_with_indices.out aten.mm.out
            """,
        "Between numbers and levels of int8, elementwise.": """
            quantized_decomposed.dequantize_per_tensor.out quantized_decomposed.quantize_per_tensor.out
            """,
    }
)
"""Names of kernels by the reason that no values make them touch memory that is not theirs."""

_ALLOWED = frozenset(name for names in KERNELS.values() for name in names.split())


def check(raw: bytes) -> None:
    """Check the kernels, backends, instructions and planned memory of a program.

    Raises:
        ProgramRefused: It has others, or plans too much; or it is no `.pte` with one method.
    """
    plan = pte_plan.read(raw)
    faults = {
        "kernel": plan.portable.keys() - _ALLOWED,
        "backend": plan.backends - {XNNPACK},
        "instruction of kind": {str(kind) for kind in plan.other_instructions},
    }
    for what, found in faults.items():
        if found:
            raise ProgramRefused(f"program refused: {what} {min(found)[:80]!r} is not among those that programs use")
    if plan.planned_bytes > MAX_PLANNED_BYTES:
        raise ProgramRefused(
            f"program refused: it plans {plan.planned_bytes} bytes of memory; at most {MAX_PLANNED_BYTES} are allowed"
        )
