"""Local plans in short form, for methods.

    shared = source(download="global")
    plan(assemble(START, rule(shared)), train(settings), uploads=[upload(settings, base="global")])

is FedAvg's: start from the set `global`, train, upload the trained weights, evaluate both.
"""

from collections.abc import Iterable, Mapping

from fedlens_proto import plans
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.planning.task_settings import Number, TaskSettings

START, TRAINED, FINE_TUNED = "start", "trained", "fine_tuned"
WEIGHTS = "weights"
"""Name of the upload of weights."""


def source(*, state: str = "", value: str = "", download: str = "") -> pb.Source:
    """A value, a download, or client state with one of them as its stand-in."""
    return pb.Source(state=state, value=value or None, download=download or None)


def rule(source: pb.Source, tensors: pb.TensorSelector | None = None) -> pb.Rule:
    """The source of these tensors; None: of all."""
    return pb.Rule(tensors=tensors, source=source)


def bind(reference: str, source: pb.Source) -> pb.Binding:
    """The source of a program's reference."""
    return pb.Binding(reference=reference, source=source)


def assemble(value: str, *rules: pb.Rule) -> pb.Instruction:
    """Weights from several sources; the first rule that selects a tensor counts."""
    return pb.Instruction(value=value, assemble=pb.Assemble(rules=rules))


def train(
    settings: TaskSettings,
    value: str = TRAINED,
    *,
    start: str = START,
    program: str = "step",
    epochs: int | None = None,
    steps: int | None = None,
    hyper: Mapping[str, Number] | None = None,
    bindings: Iterable[pb.Binding] = (),
    rows: pb.Rows = pb.ROWS_TRAIN,
) -> pb.Instruction:
    """Weights trained from the value `start`.

    Args:
        settings: The task's.
        value: Name of the trained weights.
        start: Name of the weights to start from.
        program: A program that trains.
        epochs: Passes over the rows; None, and `steps` is too: the task's epochs or steps, by default one epoch.
        steps: Batches, instead of `epochs`.
        hyper: Hyper-parameters by name; None: the task's.
        bindings: The sources of the program's references.
        rows: Train or public rows.
    """
    if epochs is None and steps is None:
        epochs, steps = (None, settings.steps) if settings.steps is not None else (settings.epochs or 1, None)
    training = pb.Train(program=program, start=start, epochs=epochs, steps=steps, bindings=bindings, rows=rows)
    training.hyper_values.extend(_hyper_values(settings.hyper if hyper is None else hyper))
    return pb.Instruction(value=value, train=training)


def derive(
    value: str,
    program: str,
    *bindings: pb.Binding,
    hyper: Mapping[str, Number] | None = None,
    rows: pb.Rows = pb.ROWS_UNSPECIFIED,
) -> pb.Instruction:
    """A table, or weights, that a program derives without training.

    Args:
        value: Name of the result.
        program: A program that derives.
        bindings: The sources of the program's references.
        hyper: Hyper-parameters by name; None: the bundle's defaults.
        rows: The rows that the program runs over; unspecified: none.
    """
    derivation = pb.Derive(program=program, bindings=bindings, hyper_values=_hyper_values(hyper or {}), rows=rows)
    return pb.Instruction(value=value, derive=derivation)


def keep(state: str, value: str = TRAINED, tensors: pb.TensorSelector | None = None) -> pb.Keep:
    """A value, or these tensors of weights, that becomes client state of that name."""
    return pb.Keep(state=state, value=value, tensors=tensors)


def upload(
    settings: TaskSettings,
    value: str = TRAINED,
    tensors: pb.TensorSelector | None = None,
    *,
    base: str = "",
    name: str = WEIGHTS,
) -> pb.Upload:
    """An upload of weights, encoded as the task says.

    Args:
        settings: The task's.
        value: Name of the weights.
        tensors: The uploaded tensors; None: all.
        base: Name of the download that a delta is to, where the task asks for deltas.
        name: Name of the upload.
    """
    base = base if settings.difference else ""
    return pb.Upload(name=name, value=value, tensors=tensors, codec=settings.wire_codec, base=base)


def upload_table(name: str, value: str) -> pb.Upload:
    """An upload of a table, always float32 and whole."""
    return pb.Upload(name=name, value=value, codec=pb.CODEC_FLOAT32)


def evaluate(label: str, value: str = "", program: str = "", bindings: Iterable[pb.Binding] = ()) -> pb.Evaluation:
    """An evaluation of weights, by default those named like the label, with the program `predict`."""
    return pb.Evaluation(label=label, value=value or label, program=program, bindings=bindings)


CLASS_COUNTS = pb.Statistic(class_counts=pb.ClassCounts())
CONFUSION = pb.Statistic(confusion=pb.Confusion())


def label_distribution(epsilon: float) -> pb.Statistic:
    """The client's share of each class with Laplace noise."""
    return pb.Statistic(label_distribution=pb.LabelDistribution(epsilon=epsilon))


EVALUATIONS = (evaluate(START), evaluate(TRAINED))


def plan(
    *instructions: pb.Instruction,
    keeps: Iterable[pb.Keep] = (),
    uploads: Iterable[pb.Upload] = (),
    evaluations: Iterable[pb.Evaluation] = EVALUATIONS,
    statistics: Iterable[pb.Statistic] = (),
    extractors: Iterable[str] = (),
    validation_percent: int = 0,
) -> pb.LocalPlan:
    """A local plan; unless it says otherwise, it evaluates the values `start` and `trained`."""
    return pb.LocalPlan(
        format=plans.FORMAT,
        instructions=instructions,
        validation_percent=validation_percent,
        extractors=extractors,
        keeps=keeps,
        uploads=uploads,
        evaluations=evaluations,
        statistics=statistics,
    )


def _hyper_values(hyper: Mapping[str, Number]) -> list[pb.HyperValue]:
    return [pb.HyperValue(name=name, value=value) for name, value in sorted(hyper.items())]
