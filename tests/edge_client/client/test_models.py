"""The models that a client names when it enrols."""

import pytest

from tests.edge_client.fakes import FakeServer
from tests.edge_client.federation import Federation


def models_of(server: FakeServer) -> list[list[str]]:
    """The models of each enrolment."""
    return [list(request.capabilities.models) for request in server.enrolments]


@pytest.mark.parametrize("models", [("alexnet", "vgg"), ()])
async def test_a_client_tells_its_models_or_none_when_it_enrols(
    federation: Federation, models: tuple[str, ...]
) -> None:
    assert models_of(await federation.run(models=models)) == [list(models)]


async def test_a_client_enrols_again_only_when_its_models_are_others(federation: Federation) -> None:
    async with federation.server(rounds=3) as server:
        for models in (("alexnet",), ("alexnet",), ("resnet18",)):
            await federation.one_round(server, models=models)

    assert models_of(server) == [["alexnet"], ["resnet18"]]
