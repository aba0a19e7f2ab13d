"""Local-only: every client trains its own model and uploads nothing; the baseline for all other methods.

No paper. Each client starts from the bundle's initial weights, continues from its own model in every later round, and
uploads nothing; the server keeps nothing. Bundles need only have the same classes. A reference of the objective is the
client's own model at the start of the round: a pull towards it shortens the steps and has no other effect.
"""

from fedlens_proto.manifest import INITIAL
from fedlens_server.methods.fedavg import single_phase
from fedlens_server.planning import bundles
from fedlens_server.planning.local_plans import START, assemble, bind, keep, plan, rule, source, train
from fedlens_server.planning.method import Method, TaskPlan

OWN_MODEL = "model"


def for_task(task: TaskPlan) -> Method:
    """Local-only training for a task; there is no state and no global model.

    Raises:
        SettingsError: The task sets options.
    """
    references = sorted(bundles.references(task.ordinary[0]))
    local_plan = plan(
        assemble(START, rule(source(state=OWN_MODEL, download=INITIAL))),
        train(task.settings, bindings=[bind(reference, source(value=START)) for reference in references]),
        keeps=[keep(OWN_MODEL)],
    )
    return Method(
        phases=single_phase(task, local_plan),
        begin=lambda phase, state, tools: state,
        download=lambda phase, state, client: None if client is None else {},
        aggregate=lambda phase, state, updates, tools: state,
    )
