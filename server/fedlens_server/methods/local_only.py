"""Local-only: every client trains its own model and uploads nothing; the baseline for all other methods.

No paper. Each client starts from the bundle's initial weights, continues from its own model in every later round, and
uploads nothing; the server keeps nothing. Bundles need only have the same classes. A reference of the objective is the
client's own model at the start of the round: a pull towards it shortens the steps and has no other effect. One that
the objective can do without, such as the dual of `dynamic`, is left out, since it may stand for something else.
"""

from fedlens_proto import slots
from fedlens_proto.manifest import INITIAL, program
from fedlens_proto.v1 import assignment_pb2
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.planning.local_plans import START, assemble, bind, keep, plan, rule, source, train
from fedlens_server.planning.method import Method, TaskPlan

OWN_MODEL = "model"


def for_task(task: TaskPlan) -> Method:
    """Local-only training for a task; there is no state and no global model.

    Raises:
        SettingsError: The task sets options.
    """
    step = program(task.ordinary[0], "step")
    counts = assignment_pb2.Source(label_counts=True)
    bindings = [
        bind(name, counts if name == slots.LABEL_COUNTS else source(value=START))
        for name in sorted(slots.references(step).keys() - set(step.optional))
    ]
    local_plan = plan(
        assemble(START, rule(source(state=OWN_MODEL, download=INITIAL))),
        train(task.settings, bindings=bindings),
        keeps=[keep(OWN_MODEL)],
    )
    return Method(
        phases=single_phase(task, local_plan),
        begin=lambda phase, state, tools: state,
        download=lambda phase, state, client: None if client is None else {},
        aggregate=lambda phase, state, updates, tools: state,
    )
