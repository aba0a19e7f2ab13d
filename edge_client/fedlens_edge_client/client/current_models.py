"""The models that a client predicts with, one a task."""

from collections.abc import Iterable

from fedlens_edge_client.errors import ModelError
from fedlens_proto import plans
from fedlens_proto.v1 import assignment_pb2, check_in_pb2


class CurrentModels:
    """What the last check-in said of each task's model."""

    def __init__(self, models: Iterable[check_in_pb2.CurrentModel] = ()) -> None:
        """As a server sent them."""
        self._models = list(models)

    def take(self, assignment: assignment_pb2.Assignment) -> None:
        """Replace a task's model by what the plan starts from, unless it needs values to do so; keep the others."""
        plan = assignment.local_plan
        rules = plans.start_rules(plan)
        if not rules or any(rule.source.value for rule in rules):
            return
        model = check_in_pb2.CurrentModel(
            task=assignment.task,
            bundle=assignment.bundle,
            sets=assignment.sets,
            rules=rules,
            extractors=plan.extractors,
            statement=assignment.statement,
        )
        others = [other for other in self._models if other.task != model.task]
        self._models = sorted([*others, model], key=lambda model: model.task)

    def of(self, task: int | None) -> check_in_pb2.CurrentModel:
        """The model of a task; None: of the first task that has one.

        Raises:
            ModelError: No check-in has named one.
        """
        for model in self._models:
            if model.rules and task in (None, model.task):
                return model
        raise ModelError("the server has named no model for this client yet; check in first (run or run_once)")
