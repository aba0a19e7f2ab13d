"""Engines in a child give what those in this process give, to the last bit, and outlive a crash."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from fedlens_edge_client.background import Interrupted
from fedlens_edge_client.client import client as client_module
from fedlens_edge_client.client.events import RoundFailed, RoundReported
from fedlens_edge_client.engines import BadInput, BundleUnusable, Engine, NonFinite, ProgramCrashed, Rows
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.children import Children
from fedlens_edge_client.engines.child.engine import ChildEngine
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle, program
from fedlens_proto.v1 import assignment_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.edge_client.engines.child.test_confinement import HOSTILE
from tests.edge_client.fakes import fedavg_plan, train_of
from tests.edge_client.federation import Federation

PT2, PTE = pb.PROGRAM_FORMAT_PT2, pb.PROGRAM_FORMAT_PTE
BATCHES = [np.arange(4), np.arange(4, 8), np.array([9, 8, 0, 1])] * 5
SHORT = [*BATCHES, np.array([9, 8])]
Batches = Sequence[NDArray[np.int64]]
ROWS = Rows(np.random.default_rng(1).standard_normal((10, 12), np.float32), np.random.default_rng(2).integers(0, 3, 10))


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child(PT2)
    yield child
    child.end()


@pytest.fixture(scope="module")
def engine(child: Child, head_bundle: Bundle) -> Engine:
    return ChildEngine(head_bundle, PT2, lambda: child)


def trained(
    engine: Engine, rows: Rows = ROWS, on_step: Callable[[float], None] | None = None, batches: Batches = SHORT
) -> tuple[dict[str, bytes], list[float]]:
    """The bytes of all weights after five epochs, and the losses."""
    losses: list[float] = []
    start = dict(engine.bundle.initial())
    references = {"global": start} if program(engine.bundle.manifest, "step").objective == "proximal" else {}
    found = engine.train("step", start, rows, batches, {"lr_classifier": 0.1}, references, on_step or losses.append)
    return {name: array.tobytes() for name, array in found.items()}, losses


def test_a_head_and_its_losses_are_those_of_torch_in_process(engine: Engine, head: TorchEngine) -> None:
    found = trained(engine)

    assert found == trained(head)
    assert found[0] != {name: array.tobytes() for name, array in engine.bundle.initial().items()}


@pytest.mark.long
def test_a_head_is_that_of_executorch_in_process(phone: Bundle) -> None:
    child = Child(PTE)

    found = trained(ChildEngine(phone, PTE, lambda: child))

    assert found == trained(ExecutorchEngine(phone))
    child.end()


def test_photos_and_logits_are_those_of_torch_in_process(engine: Engine, head: TorchEngine) -> None:
    weights = dict(head.bundle.initial())
    for seed in range(2):
        photo = np.random.default_rng(seed).random((1, 3, 8, 8), np.float32)
        assert engine.embed(photo).tobytes() == head.embed(photo).tobytes()
    assert engine.predict(weights, ROWS.inputs).tobytes() == head.predict(weights, ROWS.inputs).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("bundle", ["cnn", "norm"])
def test_a_whole_model_is_that_of_torch_in_process(child: Child, bundle: str, request: pytest.FixtureRequest) -> None:
    own: TorchEngine = request.getfixturevalue(bundle)
    inputs = program(own.bundle.manifest, "step").inputs
    shape = next(slot.shape[1:] for slot in inputs if slot.kind == pb.SLOT_KIND_INPUT)
    rows = Rows(np.random.default_rng(0).random((10, *shape), np.float32), ROWS.labels)

    engine = ChildEngine(own.bundle, PT2, lambda: child)
    assert trained(engine, rows, batches=BATCHES) == trained(own, rows, batches=BATCHES)


def test_without_batches_the_weights_come_back(engine: Engine) -> None:
    start = dict(engine.bundle.initial())

    found = engine.train("step", start, ROWS, [], {}, {"global": start})

    assert all(np.array_equal(found[name], start[name]) for name in start)
    assert all(array.flags.writeable for array in found.values())


def test_a_training_that_is_cancelled_leaves_nothing_behind(engine: Engine, head: TorchEngine) -> None:
    class Cancelled(Exception):
        pass

    def cancel(_: float) -> None:
        raise Cancelled

    with pytest.raises(Cancelled):
        trained(engine, on_step=cancel)

    assert trained(engine) == trained(head)


def test_what_the_bundle_does_not_allow_is_named_as_in_process(engine: Engine) -> None:
    weights = dict(engine.bundle.initial())

    with pytest.raises(BadInput, match=r"found float32\[2, 5\], the bundle takes float32\[2, 12\]"):
        engine.predict(weights, np.zeros((2, 5), np.float32))
    with pytest.raises(NonFinite, match="the logits hold a NaN"):
        engine.predict(weights, np.full((2, 12), np.nan, np.float32))


def test_a_program_is_vetted_in_the_child(child: Child, head_bundle: Bundle, tmp_path: Path) -> None:
    refused = with_step(head_bundle, b"PK no archive", tmp_path / "bundle")

    with pytest.raises(BundleUnusable, match="program 'step' cannot be used: program refused: it is no readable zip"):
        trained(ChildEngine(refused, PT2, lambda: child))


def with_step(bundle: Bundle, raw: bytes, folder: Path) -> Bundle:
    """A bundle whose program `step` is another file."""
    shutil.copytree(bundle.folder, folder)
    manifest = pb.Manifest.FromString(bundle.raw)
    (file,) = program(manifest, "step").files
    (part,) = (part for part in manifest.parts if part.sha256 == file.sha256)
    part.sha256 = file.sha256 = sha256(raw).digest()
    part.size = len(raw)
    (folder / "parts" / file.sha256.hex()).write_bytes(raw)
    (folder / "manifest.pb").write_bytes(manifest.SerializeToString(deterministic=True))
    return Bundle.open(folder)


@dataclass
class Counted:
    """Crashes in memory; the third is the last."""

    counts: dict[bytes, int] = field(default_factory=dict)

    def refusal(self, bundle: bytes) -> str:
        return "three times is enough" if self.counts.get(bundle, 0) >= 3 else ""

    def note(self, bundle: bytes) -> str:
        self.counts[bundle] = self.counts.get(bundle, 0) + 1
        return f"number {self.counts[bundle]}"


def predicted(engine: Engine) -> Array:
    return engine.predict(dict(engine.bundle.initial()), ROWS.inputs)


@pytest.mark.slow
def test_after_crashes_an_engine_goes_on_in_another_child_until_they_are_too_many(
    head_bundle: Bundle, tmp_path: Path
) -> None:
    crashes, bundle = Counted(), with_step(head_bundle, b"#\nLIBRARY.memset(0, 0, 1)", tmp_path / "bundle")
    children = Children(PT2, crashes, lambda: None, process=HOSTILE)
    engine = children.engine(bundle)

    for number in (1, 2, 3):
        assert not predicted(engine).any()
        with pytest.raises(ProgramCrashed, match=f"signal SIGSEGV: the program is damaged or hostile; number {number}"):
            trained(engine)

    for refused in (partial(predicted, engine), partial(children.engine, bundle)):
        with pytest.raises(BundleUnusable, match="three times is enough"):
            refused()
    assert not predicted(children.engine(head_bundle)).any()
    assert crashes.counts == {bundle.id: 3}
    children.close()


@pytest.mark.slow
def test_each_bundle_has_a_child_of_its_own(head_bundle: Bundle, tmp_path: Path) -> None:
    children = Children(PT2, Counted(), lambda: None, process=HOSTILE)
    first = children._waiting
    predicted(children.engine(head_bundle))
    assert (children._working, children._waiting) == (first, None)

    predicted(children.engine(with_step(head_bundle, b"another", tmp_path / "bundle")))

    assert first is not None
    assert first.has_ended
    assert children._working not in (first, None)
    # A client that has gone from one bundle to another may go back.
    assert children._waiting is not None
    children.close()


@pytest.mark.slow
def test_a_client_that_is_cancelled_does_not_wait_for_an_endless_program(head_bundle: Bundle, tmp_path: Path) -> None:
    cancelled = [False]

    def check() -> None:
        if cancelled[0]:
            raise Interrupted

    crashes = Counted()
    children = Children(PT2, crashes, check, process=HOSTILE)
    engine = children.engine(with_step(head_bundle, b"#\nwhile True: pass", tmp_path / "bundle"))
    predicted(engine)

    cancelled[0] = True
    with pytest.raises(Interrupted):
        trained(engine)

    assert children._working is not None
    assert children._working.has_ended
    assert crashes.counts == {}
    children.close()


@pytest.mark.slow
async def test_a_client_whose_program_crashed_waits_with_its_bundle_and_goes_on_with_another(
    federation: Federation, head_bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hostile(_: object, *arguments: object) -> Children:
        return Children(PT2, *arguments, process=HOSTILE)  # type: ignore[arg-type]  # as the client gives them

    monkeypatch.setattr(client_module, "make_children", hostile)
    bad = with_step(head_bundle, b"#\nos.kill(os.getppid(), 9)", tmp_path / "bundle")
    plan = fedavg_plan()
    binding = assignment_pb2.Binding(reference="global", source=assignment_pb2.Source(download="global"))
    train_of(plan).bindings.append(binding)

    async with federation.joined(plan, rounds=4, bundle=bad, engine_factory=None) as (server, client):
        crashed, waits = [await client.run_once() for _ in range(2)]
        server.bundle = head_bundle
        goes_on = await client.run_once()
        # The count outlives the process.
        server.bundle = bad
        waits_again = await client.run_once()

    failures = [outcome for outcome in (crashed, waits, waits_again) if isinstance(outcome, RoundFailed)]
    assert [failure.reason for failure in failures] == ["bundle"] * 3
    name = f"bundle {bad.id.hex()[:12]} has ended its process once, and may run again in 1 min"
    assert "asked the system for what programs may not have (signal SIGSYS)" in failures[0].detail
    assert failures[0].detail.endswith(name)
    assert [failure.detail for failure in failures[1:]] == [name] * 2
    assert isinstance(goes_on, RoundReported)


@pytest.mark.slow
def test_what_a_child_gives_is_checked_here(head_bundle: Bundle, tmp_path: Path) -> None:
    source = b"#\nreturned = torch.full((), float('nan'))\ntorch.zeros = lambda shape, dtype: returned.expand(shape)"
    child = Child(PT2, process=HOSTILE)

    with pytest.raises(NonFinite, match="the loss of step 1 is nan"):
        trained(ChildEngine(with_step(head_bundle, source, tmp_path / "bundle"), PT2, lambda: child))
    child.end()
