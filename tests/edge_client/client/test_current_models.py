from fedlens_edge_client.client.current_models import CurrentModels
from fedlens_proto.v1 import assignment_pb2, check_in_pb2
from tests.vectors.plans import assemble, plan, source

GLOBAL = assignment_pb2.BlobSet(name="global", sha256=b"new")
KEPT = assignment_pb2.Rule(source=assignment_pb2.Source(state="personal", download="global"))
STARTS = plan(assemble("start", assignment_pb2.Rule(source=source("global"))))


def rules_after(known: assignment_pb2.Rule, *, bundle: bytes = b"b") -> list[assignment_pb2.Rule]:
    models = CurrentModels([check_in_pb2.CurrentModel(task=1, bundle=b"b", rules=[known])])
    models.take(assignment_pb2.Assignment(task=1, bundle=bundle, sets=[GLOBAL], local_plan=STARTS))
    model = models.of(1)
    assert (model.bundle, list(model.sets)) == (bundle, [GLOBAL])
    return list(model.rules)


def test_an_assignment_renews_the_sets_of_a_model_that_the_client_keeps() -> None:
    assert rules_after(KEPT) == [KEPT]


def test_a_model_that_the_sets_do_not_make_becomes_what_the_plan_starts_from() -> None:
    starts = [assignment_pb2.Rule(source=source("global"))]

    assert rules_after(assignment_pb2.Rule(source=source("centre-0"))) == starts
    assert rules_after(KEPT, bundle=b"c") == starts
