from collections.abc import Callable

from fedlens_edge_client import EdgeClient
from fedlens_proto.manifest import Bundle
from tests.edge_client.fakes import FakeServer, fedavg_plan

MakeClient = Callable[..., EdgeClient]


def models_of(server: FakeServer) -> list[list[str]]:
    """The models of each enrolment."""
    return [list(request.capabilities.models) for request in server.enrolments]


async def test_a_client_tells_its_models_when_it_enrols(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url, models=("alexnet", "vgg")) as client:
        await client.run_once()

    assert models_of(server) == [["alexnet", "vgg"]]


async def test_a_client_without_models_takes_any(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run_once()

    assert models_of(server) == [[]]


async def test_a_client_enrols_again_only_when_its_models_are_others(bundle: Bundle, client_of: MakeClient) -> None:
    async with FakeServer(bundle, fedavg_plan(), rounds=3) as server:
        for models in (("alexnet",), ("alexnet",), ("resnet18",)):
            async with client_of(server.url, models=models) as client:
                await client.run_once()

    assert models_of(server) == [["alexnet"], ["resnet18"]]
