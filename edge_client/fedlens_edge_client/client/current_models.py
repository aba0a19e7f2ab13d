"""The models that a client predicts with, one a task."""

from collections.abc import Iterable, Sequence

from fedlens_edge_client.errors import ModelError
from fedlens_proto import plans
from fedlens_proto.v1 import assignment_pb2, check_in_pb2


class CurrentModels:
    """What the last check-in said of each task's model."""

    def __init__(self, models: Iterable[check_in_pb2.CurrentModel] = ()) -> None:
        """As a server sent them."""
        self._models = list(models)

    def take(self, assignment: assignment_pb2.Assignment) -> None:
        """Renew the sets of a task's model. If they do not make it, it becomes what the plan starts from.

        What starts from values of the plan is no model, and changes nothing.
        """
        plan, of_both = assignment.local_plan, (assignment.task, assignment.bundle)
        known = next((each for each in self._models if (each.task, each.bundle) == of_both), None)
        downloaded = {blob_set.name for blob_set in assignment.sets}
        if known is not None and known.rules and downloaded >= {rule.source.download for rule in known.rules} - {""}:
            rules: Sequence[assignment_pb2.Rule] = known.rules  # such as those of a model that this client keeps
            extractors = known.extractors
        else:
            rules, extractors = plans.start_rules(plan), plan.extractors
        if not rules or any(rule.source.value for rule in rules):
            return
        model = check_in_pb2.CurrentModel(
            task=assignment.task,
            bundle=assignment.bundle,
            sets=assignment.sets,
            rules=rules,
            extractors=extractors,
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
