"""Vetting of each call: tensors are computed anew, and arguments keep to the rule of their operator."""

import pytest
import torch

from fedlens_proto.errors import ProgramRefused
from fedlens_proto.programs import pt2, pt2_loading, pt2_values
from fedlens_proto.programs.pt2_rules import BY_OPERATOR, RULES
from tests.proto.programs.pt2_calls import ATTACKS, IMAGE, INDEX, POOLED, WINDOW, Call, program


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_for_what_it_does(name: str) -> None:
    (inputs, calls), reason = ATTACKS[name]
    result = "y" if "y" in calls[-1][2] else next(iter(calls[-1][2]))

    with pytest.raises(ProgramRefused, match=reason):
        pt2_values.vetted(program(inputs, calls, [result]))


def test_a_gradient_of_max_pooling_by_its_own_indices_passes_and_runs() -> None:
    back: Call = (
        "max_pool2d_with_indices_backward.default",
        {"grad_output": "g", "self": "x", **WINDOW, "indices": "i"},
        {"y": (2, 3, 8, 8)},
    )
    raw = pt2_values.vetted(program({**IMAGE, "g": (2, 3, 4, 4)}, [POOLED, back], ["y"]))
    function = pt2_loading.load(raw).graph_module

    # Of equal pixels, each window's first gets the gradient.
    (found,) = function(torch.zeros(2, 3, 8, 8), torch.ones(2, 3, 4, 4))

    assert found[:, :, ::2, ::2].sum() == found.sum() == 2 * 3 * 4 * 4


def test_the_stride_of_a_dimension_of_one_element_does_not_matter() -> None:
    # Of a batch of 1, torch's export says 1, and its kernel for no content 0.
    calls: list[Call] = [
        ("sum.default", {"self": "x"}, {"s": ()}),
        ("expand.default", {"self": "s", "size": [1]}, {"y": (7, (1,), (1,))}),
    ]

    pt2_values.vetted(program({"x": (3,)}, calls, ["y"]))


def test_indices_of_max_pooling_may_gather_from_planes_as_large() -> None:
    flat: Call = ("view.default", {"self": "x", "size": [2, 3, 64]}, {"f": (2, 3, 64)})
    places: Call = ("view.default", {"self": "i", "size": [2, 3, 16]}, {"j": (INDEX, (2, 3, 16))})
    taken: Call = ("gather.default", {"self": "f", "dim": -1, "index": "j"}, {"y": (2, 3, 16)})

    pt2_values.vetted(program(IMAGE, [POOLED, flat, places, taken], ["y"]))


def test_memory_is_counted_from_a_tensors_first_to_its_last_use() -> None:
    # x has 4000 bytes and stays. a is there with b, b with c, and each has 4000 bytes: 3 * 4000.
    calls: list[Call] = [("relu.default", {"self": before}, {after: (1000,)}) for before, after in ("xa", "ab", "bc")]
    raw = pt2.canonical(program({"x": (1000,)}, calls, ["c"]))

    needs = pt2_values.needs(pt2.read(raw)[1])

    # Each call reads and writes 1000 elements.
    assert (needs.peak_bytes, needs.work) == (12_000, 6000)


def test_what_is_kept_between_runs_counts_as_long() -> None:
    # a and b come from a constant and are kept, with x and s; c and d come and go, of which two are there at once.
    calls: list[Call] = [
        ("relu.default", {"self": "s"}, {"a": (1000,)}),
        ("neg.default", {"self": "s"}, {"b": (1000,)}),
        ("add.Tensor", {"self": "x", "other": "a"}, {"c": (1000,)}),
        ("add.Tensor", {"self": "c", "other": "b"}, {"d": (1000,)}),
    ]
    _, graph = pt2.read(program({"x": (1000,), "s": (1000,)}, calls, ["d"]))

    assert pt2_values.needs(graph, constant=[1]).peak_bytes == 6 * 4000
    # Otherwise a is gone when d is made, and b when nothing needs it any more.
    assert pt2_values.needs(graph).peak_bytes == 5 * 4000


def test_a_result_may_not_be_a_constant_input_itself() -> None:
    raw = program({"x": (2, 3)}, [("t.default", {"self": "x"}, {"y": (7, (3, 2), (1, 3))})], ["y"])
    pt2_values.vetted(raw)

    with pytest.raises(ProgramRefused, match="result 'y' shares the memory of an input that does not change"):
        pt2_values.vetted(raw, constant=[0])


def test_each_operator_has_one_rule() -> None:
    assert sum(len(rule.operators) for rule in RULES) == len(BY_OPERATOR)
