"""Local-only: every client trains its own model and uploads nothing; the baseline for all other methods.

No paper. Each client starts from the bundle's initial weights, continues from its own model in every later round, and
uploads nothing; the server keeps nothing. Bundles need only have the same classes. A reference of the objective is the
client's own model at the start of the round: a pull towards it shortens the steps and has no other effect.
"""

from fedlens_proto.manifest import INITIAL
from fedlens_proto.v1 import assignment_pb2 as pb
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.planning import options
from fedlens_server.planning.method import Method, TaskPlan

OWN_MODEL = "model"


def for_task(task: TaskPlan) -> Method:
    """Local-only training for a task; there is no state and no global model.

    Raises:
        SettingsError: The task sets options.
    """
    options.read(task.settings, {})
    local_plan = pb.LocalPlan(
        start=[pb.StartRule(source=pb.SetSource(kept=OWN_MODEL, download=INITIAL))],
        references=[pb.ReferenceBinding(name=each.name, start=True) for each in task.ordinary[0].references],
        stages=[task.settings.stage("step")],
        keep=[pb.Keep(set=OWN_MODEL)],
        evaluation=pb.EvaluationPlan(at_start=True, at_end=True),
    )
    return Method(
        phases=single_phase(task, local_plan),
        begin=lambda phase, state, tools: {},
        download=lambda phase, state, client: None if client is None else {},
        aggregate=lambda phase, state, updates, tools: state,
    )
