"""The tiny network with further programs, as an export makes them for a method; nobody runs them.

Its features are 2, as its classes; batches have 4 rows.
"""

from collections.abc import Mapping, Sequence

from fedlens_proto.plan_check import check
from fedlens_proto.slots import check_programs
from fedlens_proto.v1 import blob_pb2
from fedlens_proto.v1 import manifest_pb2 as pb
from fedlens_server.planning.method import Method
from tests.server.bundles import FEATURES, TinyBundle
from tests.server.networks import network

BATCH, CLASSES, WIDTH, PUBLIC = 4, 2, 2, 3
HIDDEN, NOISE = 3, 4
FLOATS = blob_pb2.DTYPE_FLOAT32
Shapes = Mapping[str, Sequence[int]]
LOSSES: Shapes = {"base": (), "count": ()}
PROTOTYPES: Shapes = {"prototypes": (CLASSES, WIDTH), "has": (CLASSES,)}
SUMS: Shapes = {"sum": (CLASSES, WIDTH), "count": (CLASSES,)}
GENERATOR: Shapes = {
    "hidden.weight": (HIDDEN, NOISE + CLASSES),
    "hidden.bias": (HIDDEN,),
    "output.weight": (WIDTH, HIDDEN),
    "output.bias": (WIDTH,),
    "classes": (CLASSES,),
    "alpha": (),
    "beta": (),
}


class Extended:
    """The tiny network's manifest, to which programs are added."""

    def __init__(self, objective: str = "cross_entropy") -> None:
        self._bundle = network()
        self.manifest = self._bundle.parsed
        self.step = self.manifest.programs[1]
        self.step.objective = objective

    def bundle(self) -> TinyBundle:
        """The bundle, whose programs a client could take."""
        check_programs(self.manifest)
        return TinyBundle(self.manifest.SerializeToString(), self._bundle.parts, self._bundle.initial)

    def hyper(self, program: pb.Program, name: str, value: float) -> None:
        """Add a hyper-parameter, by default this value, to a program."""
        if name not in {each.name for each in self.manifest.hyper_parameters}:
            self.manifest.hyper_parameters.add(name=name, default_value=value, maximum=100.0)
        program.inputs.add(kind=pb.SLOT_KIND_HYPER, name=name, dtype=FLOATS)

    def refer(
        self, program: pb.Program, reference: str, shapes: Shapes | None = None, *, optional: bool = False
    ) -> None:
        """Add a reference of tensors of these shapes; None: the exchangeable ones."""
        if shapes is None:
            found = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in self.manifest.tensors]
        else:
            found = [(name, FLOATS, tuple(shape)) for name, shape in shapes.items()]
        for name, dtype, shape in found:
            kind = pb.SLOT_KIND_REFERENCE
            program.inputs.add(kind=kind, name=f"{reference}/{name}", dtype=dtype, shape=shape)
        if optional:
            program.optional.append(reference)

    def derives(
        self, name: str, makes: str, outputs: Shapes, kind: pb.SlotKind = pb.SLOT_KIND_RESULT, *, rows: bool = False
    ) -> pb.Program:
        """Add a program that makes a table."""
        program = self.manifest.programs.add(name=name, makes=makes, files=self.step.files)
        if rows:
            program.inputs.add(kind=pb.SLOT_KIND_INPUT, dtype=FLOATS, shape=(BATCH, FEATURES))
        for tensor, shape in sorted(outputs.items()):
            slot = program.outputs.add(kind=kind, name=tensor, dtype=FLOATS, shape=shape)
            if kind == pb.SLOT_KIND_ACCUMULATOR:
                program.inputs.add().CopyFrom(slot)
        return program

    def trains(self, name: str, objective: str) -> pb.Program:
        """Add a program like `step`, as it is now, but with no hyper-parameters and references."""
        program = self.manifest.programs.add()
        program.CopyFrom(self.step)
        program.name, program.objective = name, objective
        kept = [slot for slot in program.inputs if slot.kind not in (pb.SLOT_KIND_HYPER, pb.SLOT_KIND_REFERENCE)]
        del program.inputs[:], program.optional[:]
        program.inputs.extend(kept)
        return program


def comparing(candidates: int = 2) -> TinyBundle:
    """With programs over so many candidates."""
    made = Extended()
    losses = {**LOSSES, "loss": (candidates,), "vote": (candidates,)}
    compare = made.derives("compare", "losses", losses, pb.SLOT_KIND_ACCUMULATOR, rows=True)
    gain = made.derives("gain", "gain", {"score": (candidates,)})
    blend = made.manifest.programs.add(name="blend", makes="weights")
    blend.outputs.extend(slot for slot in made.step.outputs if slot.kind == pb.SLOT_KIND_WEIGHT)
    for program in (compare, gain, blend):
        for k in range(candidates):
            made.refer(program, f"candidate-{k}", optional=True)
        made.refer(program, "base", optional=True)
    made.refer(gain, "losses", losses)
    made.refer(blend, "scores", {"score": (candidates,)})
    return made.bundle()


def prototyping() -> TinyBundle:
    """With objective `prototypes` and its programs."""
    made = Extended("prototypes")
    made.hyper(made.step, "lambda", 1.0)
    made.refer(made.step, "prototypes", PROTOTYPES)
    made.refer(made.derives("class_sums", "class_sums", SUMS, pb.SLOT_KIND_ACCUMULATOR, rows=True), "model")
    made.refer(made.derives("class_means", "prototypes", PROTOTYPES), "class_sums", SUMS)
    nearest = made.manifest.programs.add()
    nearest.CopyFrom(made.manifest.programs[0])
    nearest.name = "predict_nearest"
    made.refer(nearest, "prototypes", PROTOTYPES)
    return made.bundle()


def distilling(objective: str = "distil", predictions: str = "predictions") -> TinyBundle:
    """With program `distil`, one that predicts public photos, and 3 of these."""
    made = Extended(objective)
    distil = made.trains("distil", objective)
    teacher = distil.inputs.add(kind=pb.SLOT_KIND_TARGET, name="teacher/scores", dtype=FLOATS)
    teacher.shape.extend((BATCH, CLASSES))
    program = made.derives(predictions, "predictions", {"scores": (BATCH, CLASSES)}, rows=True)
    made.refer(program, "model")
    for each in (distil, program):
        made.hyper(each, "temperature", 10.0)
    made.manifest.public.rows = PUBLIC
    return made.bundle()


def generating() -> TinyBundle:
    """With objective `generated`."""
    made = Extended("generated")
    made.refer(made.step, "generator", GENERATOR, optional=True)
    made.refer(made.step, "label_counts", {"label_counts": (CLASSES,)})
    return made.bundle()


def adapting(objective: str = "meta_fo", alpha: float = 0.01) -> TinyBundle:
    """With program `fine_tune`."""
    made = Extended(objective)
    made.hyper(made.trains("fine_tune", "cross_entropy"), "alpha", alpha)
    made.hyper(made.step, "alpha", alpha)
    return made.bundle()


def check_plans(method: Method, bundle: TinyBundle) -> None:
    """Check that clients can carry out every phase with the downloads of its plan."""
    for phase in method.phases:
        check(phase.plan, bundle.parsed)
