import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from fedlens_edge_client.engines import (
    BadInput,
    BundleUnusable,
    Engine,
    EngineError,
    NonFinite,
    Rows,
    RuntimeMissing,
    installed,
    trial,
)
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.engine import ChildProgram
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_edge_client.engines.loaded import read
from fedlens_edge_client.engines.pte import runtime
from fedlens_edge_client.engines.torch import TorchEngine
from fedlens_proto.blob import Array
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb
from tests.phone_bundles import BATCH, CLASSES, FEATURES, SIDE, pte_of, with_pte


@pytest.fixture(scope="session")
def engine(phone: Bundle) -> ExecutorchEngine:
    return ExecutorchEngine(phone)


def rows_of(count: int) -> Rows:
    generator = np.random.default_rng(2)
    inputs = generator.standard_normal((count, FEATURES), dtype=np.float32)
    return Rows(inputs, generator.integers(0, len(CLASSES), count))


def trained(engine: Engine, epochs: int = 1, weights: dict[str, Array] | None = None) -> dict[str, Array]:
    """The bundle's head after epochs over ten rows, the last batch of which is short."""
    batches = [np.arange(start, min(start + BATCH, 10)) for start in range(0, 10, BATCH)] * epochs
    hyper = {"lr_extractor": 0.1, "lr_classifier": 0.1, "momentum": 0.9}
    return engine.train("step", weights or dict(engine.bundle.initial()), rows_of(10), batches, hyper, {})


@pytest.mark.slow
def test_a_head_trained_by_executorch_is_the_one_trained_by_torch(engine: ExecutorchEngine, phone: Bundle) -> None:
    ours, theirs = trained(engine), trained(TorchEngine(phone))

    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=1e-5)
    assert np.abs(ours["classifier.weight"]).max() > 0.01


def test_photos_and_logits_are_those_of_torch(engine: ExecutorchEngine, phone: Bundle) -> None:
    photo = np.random.default_rng(0).random((1, 3, SIDE, SIDE), dtype=np.float32)
    theirs = TorchEngine(phone)
    weights, inputs = trained(engine), rows_of(10).inputs

    np.testing.assert_allclose(engine.embed(photo), theirs.embed(photo), rtol=0, atol=1e-6)
    np.testing.assert_allclose(engine.predict(weights, inputs), theirs.predict(weights, inputs), rtol=0, atol=1e-5)


def test_a_result_stays_as_it_is_when_the_program_runs_again(engine: ExecutorchEngine) -> None:
    # The runtime gives out memory that its next run writes over.
    first = trained(engine)
    before = {name: array.copy() for name, array in first.items()}
    dark, light = (np.full((1, 3, SIDE, SIDE), value, np.float32) for value in (0.0, 1.0))
    features = engine.embed(dark)

    trained(engine, epochs=3)
    engine.embed(light)

    for name, array in first.items():
        np.testing.assert_array_equal(array, before[name])
    np.testing.assert_array_equal(features, np.zeros(FEATURES, np.float32))


def test_what_the_bundle_does_not_allow_is_named_as_with_torch(engine: ExecutorchEngine) -> None:
    weights = dict(engine.bundle.initial())

    with pytest.raises(BadInput, match=r"the rows' inputs: found float32\[2, 5\], the bundle takes float32\[2, 12\]"):
        engine.predict(weights, np.zeros((2, 5), np.float32))
    with pytest.raises(BadInput, match=r"'classifier\.bias' is missing from the weights"):
        engine.predict({"classifier.weight": weights["classifier.weight"]}, np.zeros((2, FEATURES), np.float32))
    with pytest.raises(NonFinite, match="the logits hold a NaN"):
        engine.predict(weights, np.full((2, FEATURES), np.nan, np.float32))


def test_executorch_runs_on_one_thread(engine: ExecutorchEngine) -> None:
    torch.set_num_threads(2)

    trained(ExecutorchEngine(engine.bundle))

    assert torch.get_num_threads() == 1
    assert runtime()._threadpool_get_thread_count() == 1


def test_without_executorch_the_engine_says_what_to_install(phone: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installed, "version", missing)

    with pytest.raises(RuntimeMissing, match=r"pip install 'fedlens\[executorch\]'"):
        ExecutorchEngine(phone)


def predicted(bundle: Bundle, tried: Path | None = None) -> None:
    weights = {"classifier.weight": np.zeros((3, 12), np.float32), "classifier.bias": np.zeros(3, np.float32)}
    ExecutorchEngine(bundle, tried).predict(weights, np.zeros((2, FEATURES), np.float32))


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda raw: b"", "it begins with nothing"),
    "another file": (lambda raw: b"PK\x03\x04" + raw[4:], "ExecuTorch says: Failed to load program|root table"),
    "no program": (lambda raw: b"\x89PNG\r\n\x1a\n" * 8, "no ExecuTorch program does"),
    "cut": (lambda raw: raw[:-100], "it is truncated: its segments end at"),
    "cut in the middle": (lambda raw: raw[: len(raw) // 2], "it is truncated: its program has"),
    "zeros": (lambda raw: raw[:100] + bytes(400) + raw[500:], r"it is damaged, or no \.pte"),
    "operator": (lambda raw: raw.replace(b"aten::", b"none::"), r"kernel 'none\.\S+' is not among"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_program_that_is_damaged_or_foreign_is_named_with_what_is_wrong(
    phone: Bundle, tmp_path: Path, damage: str
) -> None:
    change, reason = DAMAGES[damage]
    bundle = with_pte(phone, "predict", change(pte_of(phone, "predict")), tmp_path)

    with pytest.raises(BundleUnusable, match=f"program 'predict' cannot be used: .*({reason})"):
        predicted(bundle)


def test_a_file_that_changed_on_the_disk_is_not_even_tried(phone: Bundle, tmp_path: Path) -> None:
    bundle = with_pte(phone, "predict", pte_of(phone, "predict"), tmp_path)
    file = bundle.program_file("predict", pb.PROGRAM_FORMAT_PTE)
    file.write_bytes(file.read_bytes()[:-1] + b"\x01")

    with pytest.raises(BundleUnusable, match=r"program 'predict' cannot be used: its file, part [0-9a-f]{64}, is dam"):
        predicted(bundle)


def test_a_program_for_other_shapes_than_the_manifest_says_is_refused(phone: Bundle) -> None:
    manifest = pb.Manifest.FromString(phone.raw)
    (predict,) = (program for program in manifest.programs if program.name == "predict")
    predict.inputs[0].shape[0] = 4

    with pytest.raises(BundleUnusable, match=r"'predict': inputs hold torch.float32\[3\] where its manifest says"):
        predicted(Bundle(manifest, b"", phone.folder))


def test_a_program_in_the_place_of_another_is_refused(phone: Bundle, tmp_path: Path) -> None:
    bundle = with_pte(phone, "predict", pte_of(phone, "step"), tmp_path)

    with pytest.raises(BundleUnusable, match=r"program 'predict' has \d+ inputs, its manifest says 4"):
        predicted(bundle)


def test_a_bundle_without_programs_for_phones_is_refused(head_bundle: Bundle) -> None:
    with pytest.raises(BundleUnusable, match=r"'embed', but not for phones \(.pte\): export it with --target pte"):
        ExecutorchEngine(head_bundle)


def test_a_bundle_of_a_whole_model_is_refused(cnn: TorchEngine) -> None:
    with pytest.raises(BundleUnusable, match=r"trains all layers of its model.*: take engine torch"):
        ExecutorchEngine(cnn.bundle)


def test_a_program_that_was_tried_is_noted_so_that_the_next_process_need_not(phone: Bundle, tmp_path: Path) -> None:
    predicted(phone, tmp_path / "tried")
    predicted(phone, tmp_path / "tried")

    assert len(list((tmp_path / "tried").iterdir())) == 1


def test_engines_in_two_threads_give_what_one_gives(engine: ExecutorchEngine) -> None:
    expected = trained(engine)["classifier.weight"].tobytes()

    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(trained, [ExecutorchEngine(engine.bundle) for _ in range(2)]))

    assert [each["classifier.weight"].tobytes() for each in found] == [expected] * 2


def test_an_engine_that_two_threads_share_gives_each_the_features_of_its_own_photo(engine: ExecutorchEngine) -> None:
    def mixed_up(value: float) -> int:
        photo = np.full((1, 3, SIDE, SIDE), value, np.float32)
        return sum(bool((engine.embed(photo) != value).any()) for _ in range(2000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            found = list(threads.map(mixed_up, [0.25, 0.75]))
    finally:
        sys.setswitchinterval(before)

    assert found == [0, 0]


def mutated(raw: bytes, generator: Random) -> bytes:
    """The bytes with some bits turned over, some written over, two regions swapped, or the end cut off."""
    damaged = bytearray(raw)
    length = generator.randrange(4, 200)
    first, second = sorted(generator.sample(range(len(raw) - length), 2))
    match generator.choice(["bits", "bits", "bytes", "word", "zeros", "swap", "cut"]):
        case "bits":
            for _ in range(generator.choice([1, 1, 4, 32])):
                damaged[generator.randrange(len(raw))] ^= 1 << generator.randrange(8)
        case "bytes":
            damaged[first : first + length] = generator.randbytes(length)
        case "word":
            place = first & ~3
            damaged[place : place + 4] = generator.choice([b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", b"\0\0\0\x40"])
        case "zeros":
            damaged[first : first + length] = bytes(length)
        case "swap":
            damaged[first : first + length], damaged[second : second + length] = (
                raw[second : second + length],
                raw[first : first + length],
            )
        case _:
            del damaged[first:]
    return bytes(damaged)


def assert_none_ends_this_process(phone: Bundle, folder: Path, program: str, numbers: Iterable[int]) -> None:
    """Each mutation ends in an error of the engine, or in a program that runs; anything else fails the test."""
    ran = 0
    for number in numbers:
        bundle = with_pte(phone, program, mutated(pte_of(phone, program), Random(number)), folder)
        with suppress(EngineError):
            if program == "predict":
                predicted(bundle)
            else:
                trained(ExecutorchEngine(bundle), weights=dict(phone.initial()))
            ran += 1
    # What nobody reads, such as padding, may be anything; but most of a file counts.
    assert ran < len(list(numbers)) / 2


def test_a_handful_of_mutated_programs_end_in_errors(phone: Bundle, tmp_path: Path) -> None:
    assert_none_ends_this_process(phone, tmp_path, "predict", range(1, 9))


@pytest.mark.parametrize(
    "program", [pytest.param("predict", marks=pytest.mark.long), pytest.param("step", marks=pytest.mark.slow)]
)
def test_no_mutated_program_ends_the_process_that_asked_for_it(phone: Bundle, tmp_path: Path, program: str) -> None:
    assert_none_ends_this_process(phone, tmp_path, program, range(200))


@pytest.mark.slow
def test_a_child_without_work_ends_by_itself() -> None:
    child = Child(pb.PROGRAM_FORMAT_PTE, idle_s=0.1)
    child.wait_until_ready()

    assert child._process.wait() == 0
    child.end()


@pytest.mark.slow
def test_after_the_child_for_trials_has_ended_for_want_of_work_the_next_trial_starts_another(phone: Bundle) -> None:
    # It ends as the one above does, but not while this process is slow to give it work.
    trials = trial.Trials(idle_s=100.0)
    message, raw = read(phone, "embed", pb.PROGRAM_FORMAT_PTE)
    trials.try_program(message, raw, None)
    child = trials._child
    assert child is not None
    assert Path(f"/proc/{child.pid}/cmdline").read_bytes().endswith(b"\x00100.0\x00")
    child._link.shutdown(socket.SHUT_WR)
    assert child._process.wait() == 0

    with pytest.raises(BundleUnusable, match="is not among those that programs use"):
        trials.try_program(message, raw.replace(b"aten::", b"none::"), None)
    assert trials._child is not child
    trials.close()


class Stopped(Child):
    """A child that does nothing once it is ready."""

    def wait_until_ready(self) -> None:
        super().wait_until_ready()
        self._process.send_signal(signal.SIGSTOP)


@pytest.mark.slow
def test_a_program_that_does_not_end_in_time_is_named_with_the_limit(
    phone: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "Child", Stopped)
    trials = trial.Trials(limit_s=0.2)

    with pytest.raises(BundleUnusable, match=r"'embed' cannot be used: its process did not answer within 0\.2 s$"):
        trials.try_program(*read(phone, "embed", pb.PROGRAM_FORMAT_PTE), None)

    assert trials._child is None


@pytest.mark.slow
def test_a_trial_that_is_killed_from_outside_is_made_once_more(phone: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = trial.Trials()
    run = trial._run
    kills: list[int] = []

    def killed(program: ChildProgram) -> None:
        if kills:
            program._child._process.send_signal(kills.pop())
            program._child._process.wait()
        run(program)

    monkeypatch.setattr(trial, "_run", killed)
    kills[:] = [signal.SIGKILL]
    trials.try_program(*read(phone, "embed", pb.PROGRAM_FORMAT_PTE), None)
    kills[:] = [signal.SIGKILL] * 2
    with pytest.raises(BundleUnusable, match=r"'predict' cannot be used: its process was killed; out of memory\?"):
        trials.try_program(*read(phone, "predict", pb.PROGRAM_FORMAT_PTE), None)
    kills[:] = [signal.SIGSEGV]
    with pytest.raises(BundleUnusable, match="signal SIGSEGV: the program is damaged or hostile"):
        trials.try_program(*read(phone, "step", pb.PROGRAM_FORMAT_PTE), None)
    assert not kills
    trials.close()


@pytest.mark.slow
def test_a_child_that_has_idled_before_its_first_trial_says_nothing_of_the_program(
    phone: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, given = trial._run, list[Child]()

    def late(program: ChildProgram) -> None:
        given.append(program._child)
        if len(given) == 1:
            program._child._link.shutdown(socket.SHUT_WR)  # it ends as after idling
            program._child._process.wait()
        run(program)

    monkeypatch.setattr(trial, "_run", late)
    trials = trial.Trials()
    trials.try_program(*read(phone, "embed", pb.PROGRAM_FORMAT_PTE), None)

    assert given[0].status == 0 and trials._child is given[-1] is not given[0]
    trials.close()


INTERRUPTED = """
import os, signal, sys
from pathlib import Path
from fedlens_edge_client.engines import trial
from fedlens_edge_client.engines.loaded import read
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import manifest_pb2 as pb

bundle = Bundle.open(Path(sys.argv[1]))
signal.signal(signal.SIGINT, lambda *_: None)
for name in ("embed", "predict"):
    trial.try_program(*read(bundle, name, pb.PROGRAM_FORMAT_PTE))
    os.killpg(0, signal.SIGINT)
"""


@pytest.mark.slow
def test_ctrl_c_while_programs_are_tried_does_not_make_them_look_hostile(phone: Bundle) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(phone.folder)]

    found = subprocess.run(command, start_new_session=True, capture_output=True, text=True, timeout=120)

    assert (found.returncode, found.stderr) == (0, "")


EMBEDDED = """
import sys
from pathlib import Path
import numpy as np
from fedlens_edge_client.engines.child.child import Child
from fedlens_edge_client.engines.child.engine import ChildProgram
from fedlens_edge_client.engines.executorch import ExecutorchEngine
from fedlens_proto.manifest import Bundle

engine = ExecutorchEngine(Bundle.open(Path(sys.argv[1])))
Path(sys.argv[2]).write_bytes(engine.embed(np.full((1, 3, 8, 8), 0.5, np.float32)).tobytes())
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "closed", [*(pytest.param(each, marks=pytest.mark.long) for each in ("2>&-", ">&- 2>&-")), "<&- >&- 2>&-"]
)
def test_programs_run_in_a_process_that_began_without_standard_streams(
    phone: Bundle, tmp_path: Path, closed: str
) -> None:
    script = f'exec "$0" "$@" {closed}'
    command = ["sh", "-c", script, sys.executable, "-c", EMBEDDED, str(phone.folder), str(tmp_path / "features")]

    found = subprocess.run(command, timeout=120)

    assert found.returncode == 0
    assert (tmp_path / "features").read_bytes() == np.full(FEATURES, 0.5, np.float32).tobytes()
