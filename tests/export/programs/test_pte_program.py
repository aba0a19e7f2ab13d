"""Programs for phones: they compute the same, hold what is frozen, tell nothing, and what they cannot be is named."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedlens_export import objectives
from fedlens_export.errors import NotExportable, ParityBroken
from fedlens_export.exporting import ExportSpec, Training, export_bundle, frozen_backbone_bundle
from fedlens_export.hyper import Hyper
from fedlens_export.models import backbones
from fedlens_export.network import Network
from fedlens_export.programs import lowering, optimisers, parity, pte_graph, pte_program, steps
from fedlens_export.programs.steps import ProgramSource
from fedlens_export.report import FileReport
from fedlens_proto.blob import Blob
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb

pytestmark = pytest.mark.slow

CLASSES = ("cat", "dog", "emu")
NO_HYPER: dict[str, Hyper] = {}
NO_TENSORS: dict[str, Tensor] = {}

EXPORT = """
import sys
from pathlib import Path
from fedlens_export.exporting import ExportSpec, export_bundle
spec = ExportSpec(model="mobilenet_v3_small", class_names=("cat", "dog", "emu"), input_size=32, batch=4,
                  backbone_weights=Path(sys.argv[2]), onnx=True, pte=True)
print(export_bundle(Path(sys.argv[1]), spec).id.hex())
"""


@dataclass(frozen=True)
class Exported:
    bundle: Bundle
    files: list[FileReport]


@pytest.fixture(scope="session")
def phones(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """A convolution with BatchNorm as backbone; 8 x 8 photos become 4 features."""
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    backbone[1].running_mean.uniform_(-0.2, 0.2)
    head = backbones.build_head("hidden", 4, len(CLASSES), seed=0)
    files: list[FileReport] = []
    training = Training(class_names=CLASSES, batch=4, pte=True, onnx=True)
    folder = tmp_path_factory.mktemp("pte") / "bundle"
    return Exported(frozen_backbone_bundle(folder, backbone, head, training, 8, on_file=files.append), files)


def test_every_program_of_a_frozen_backbone_is_there_for_phones(phones: Exported) -> None:
    formats = {p.name: [file.format for file in p.files] for p in phones.bundle.manifest.programs}

    assert list(formats) == ["embed", "step", "predict"]
    assert [pb.PROGRAM_FORMAT_PTE in found for found in formats.values()] == [True] * 3
    assert "executorch" in [tool.name for tool in phones.bundle.manifest.tools]


def test_each_file_is_told_with_its_difference_from_the_model(phones: Exported) -> None:
    told = [(file.program, file.format) for file in phones.files]
    written = [(p.name, file.format) for p in phones.bundle.manifest.programs for file in p.files]

    assert told == written
    assert [file.difference for file in phones.files if file.difference is None or file.difference > 1e-5] == []
    allowed = {(file.program, file.allowed) for file in phones.files}
    assert allowed == {
        ("embed", "1e-05, or 8 x the model's own rounding"),
        ("step", "1e-05"),
        ("predict", "1e-05"),
    }
    epochs = {(file.program, file.format) for file in phones.files if file.after_epoch is not None}
    assert epochs == {("step", pb.PROGRAM_FORMAT_PT2), ("step", pb.PROGRAM_FORMAT_PTE)}


def test_a_convolution_is_delegated_with_its_norm_and_what_is_not_is_named(phones: Exported) -> None:
    found = {file.program: file.delegation for file in phones.files if file.delegation is not None}

    assert not [name for name in found["embed"].portable if "conv" in name or "norm" in name]
    assert found["embed"].delegated >= 2
    assert found["step"].portable["aten._log_softmax.default"] == 1
    assert "aten._log_softmax.default 1" in str(found["step"])


def test_frozen_tensors_are_inside_and_all_else_is_an_input(phones: Exported) -> None:
    bundle = phones.bundle
    embed = program(bundle.manifest, "embed")
    source = ProgramSource("embed", tuple(embed.inputs), tuple(embed.outputs), lambda *_: ())
    frozen = Blob.open(bundle.part(bundle.manifest.frozen))
    constants = [torch.from_numpy(frozen[slot.name].copy()) for slot in embed.inputs[:-1]]
    photo = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))

    pte = pte_program.load(source, bundle.program_file("embed", pb.PROGRAM_FORMAT_PTE).read_bytes())
    (on_phone,) = pte(*(torch.zeros_like(tensor) for tensor in constants), photo)
    (expected,) = lowering.load(bundle.program_file("embed", pb.PROGRAM_FORMAT_PT2).read_bytes())(*constants, photo)

    torch.testing.assert_close(on_phone, expected, rtol=1e-5, atol=1e-6)
    assert expected.abs().max() > 0.01


def test_no_program_for_phones_tells_where_it_was_made(phones: Exported) -> None:
    traces = [str(Path(__file__).parents[3]).encode(), str(phones.bundle.folder.parent).encode(), b".py", b"fedlens"]

    for item in phones.bundle.manifest.programs:
        raw = phones.bundle.program_file(item.name, pb.PROGRAM_FORMAT_PTE).read_bytes()
        assert not [trace for trace in traces if trace in raw]


def never(stage: str) -> None:
    """For an export that must be refused before it begins."""
    raise AssertionError(stage)


@pytest.mark.parametrize(
    ("model", "advice"),
    [("lenet5", "take a frozen backbone"), ("my_model:build", "name its FC layers with --head, so that")],
)
def test_a_model_trained_as_a_whole_is_not_for_phones(model: str, advice: str, tmp_path: Path) -> None:
    spec = ExportSpec(model=model, class_names=CLASSES, pte=True)

    with pytest.raises(NotExportable, match=rf"phones train FC layers only: .* {advice}"):
        export_bundle(tmp_path / "bundle", spec, on_stage=never)

    assert list(tmp_path.iterdir()) == []


def test_without_executorch_it_is_told_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pte_program, "find_spec", lambda name: None)
    spec = ExportSpec(model="mobilenet_v3_small", class_names=CLASSES, pte=True)

    with pytest.raises(NotExportable, match=r"ExecuTorch, which is not installed; run pip install 'fedlens\[export\]'"):
        export_bundle(tmp_path / "bundle", spec, on_stage=never)


def _source(function: lowering.Function) -> ProgramSource:
    slot = pb.Slot(kind=pb.SLOT_KIND_INPUT, dtype=blob_pb2.DTYPE_FLOAT32, shape=(2, 2))
    return ProgramSource("embed", (slot,), (slot,), function)


def _lowered(source: ProgramSource) -> bytes:
    traced = lowering.trace("embed", source.function, (torch.ones(2, 2),))
    return pte_program.lower("embed", pte_program.bind(source, traced, NO_TENSORS))[0]


def test_an_operator_that_cannot_be_lowered_is_named() -> None:
    with pytest.raises(NotExportable, match=r"'embed' uses aten.i0.default, which ExecuTorch cannot lower; build"):
        _lowered(_source(lambda x: (torch.special.i0(x),)))


def test_an_operator_that_the_runtime_lacks_is_named() -> None:
    with pytest.raises(NotExportable, match=r"'embed' uses aten::sort.values, which ExecuTorch's runtime lacks"):
        _lowered(_source(lambda x: (torch.sort(x).values,)))


def test_a_program_that_computes_something_else_is_not_shipped() -> None:
    source = _source(lambda x: (x * 2.0,))
    function = pte_program.load(source, _lowered(_source(lambda x: (x * 2.001,))))

    with pytest.raises(ParityBroken, match="'embed' as PTE differs from the model by"):
        parity.compare(source, function, NO_TENSORS, NO_HYPER, "'embed' as PTE")


def _step(
    objective: str = "cross_entropy", optimiser: str = "sgd", head: str = "hidden", features: int = 6, batch: int = 4
) -> tuple[ProgramSource, Mapping[str, Tensor], dict[str, Hyper]]:
    chosen, rule = objectives.by_name(objective), optimisers.by_name(optimiser)
    network = Network(backbones.build_head(head, features, 10, seed=0), (features,))
    source = steps.step(network, chosen, rule, batch, 10)
    return source, network.weights, steps.hyper(chosen, rule)


def test_a_step_that_drifts_over_an_epoch_is_not_shipped() -> None:
    source, weights, hyper = _step()

    def drifting(*given: Tensor) -> tuple[Tensor, ...]:
        # Less than what is allowed of one step, and more after two.
        first, *others = source.function(*given)
        return first + 0.8e-5, *others

    assert parity.compare(source, drifting, weights, hyper) < parity.TOLERANCE
    with pytest.raises(ParityBroken, match=r"'step' differs .* in classifier.bias after one epoch"):
        parity.compare_epoch(source, drifting, weights, hyper)
    assert parity.compare_epoch(source, source.function, weights, hyper) == 0.0


def test_phones_are_spared_transposed_weights_and_get_the_same_numbers() -> None:
    source, weights, hyper = _step(features=32)
    given = parity.examples(source, weights, hyper, seed=1)
    traced = lowering.trace("step", source.function, given)

    module = pte_graph.rewritten(traced)

    transposed = [node.args[0].meta["val"].shape for node in module.graph.nodes if "aten.t.default" in str(node.target)]
    assert max(shape.numel() for shape in transposed) < 32 * 512
    assert not [node for node in module.graph.nodes if "addcmul" in str(node.target)]
    for found, expected in zip(module(*given), source.function(*given), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimiser", optimisers.OPTIMISERS)
@pytest.mark.parametrize(
    ("objective", "head"),
    [
        pytest.param("cross_entropy", "linear", marks=pytest.mark.slow),
        # `test_executorch.py` runs federations with most of them.
        *(pytest.param(name, "hidden", marks=pytest.mark.long) for name in objectives.OBJECTIVES),
    ],
)
def test_every_objective_and_optimiser_runs_on_phones(objective: str, head: str, optimiser: str) -> None:
    source, weights, hyper = _step(objective, optimiser, head, features=32)
    traced = lowering.trace("step", source.function, parity.examples(source, weights, hyper, seed=0))

    raw, _ = pte_program.lower("step", pte_program.bind(source, traced, weights))

    function = pte_program.load(source, raw)
    assert parity.compare(source, function, weights, hyper) <= parity.TOLERANCE
    assert parity.compare_epoch(source, function, weights, hyper) <= parity.TOLERANCE


@pytest.mark.long
@pytest.mark.parametrize(("objective", "concatenated"), [("supcon", 0), ("cross_entropy", 3)])
def test_views_and_concatenated_extractors_are_for_phones_too(
    tmp_path: Path, objective: str, concatenated: int
) -> None:
    backbone = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten())
    head = backbones.build_head("hidden", 12, len(CLASSES), seed=0)
    training = Training(class_names=CLASSES, batch=4, objective=objective, concatenated=concatenated, pte=True)

    bundle = frozen_backbone_bundle(tmp_path / "b", backbone, head, training, 16)

    found = {p.name: [file.format for file in p.files] for p in bundle.manifest.programs}
    assert found.keys() == {"embed", "extract" if concatenated else "view", "step", "predict"}
    assert all(formats == [pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_PTE] for formats in found.values())


@pytest.mark.long
@pytest.mark.timeout(600)
def test_two_processes_export_the_same_bytes_in_all_formats(tmp_path: Path, weights_file: Path) -> None:
    printed = [
        subprocess.run(
            [sys.executable, "-c", EXPORT, tmp_path / name / "bundle", weights_file],
            check=True,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout.strip()
        for name, seed in (("one", "1"), ("deep/down", "2"))
    ]

    assert printed[0] == printed[1]
    assert len(printed[0]) == 64
