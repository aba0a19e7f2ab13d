from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from fedlens_edge_client import EdgeClient
from fedlens_proto import wire
from fedlens_proto.manifest import Bundle
from fedlens_proto.v1 import enrolment_pb2
from tests.edge_client.fakes import FakeServer, fedavg_plan

MakeClient = Callable[..., EdgeClient]


@dataclass
class Registrar(FakeServer):
    """Notes of which models clients tell when they enrol."""

    told: list[list[str]] = field(default_factory=list)

    async def _enrol(self, request: web.Request) -> web.StreamResponse:
        message = wire.decode_request(enrolment_pb2.EnrolRequest, await request.read())
        self.told.append(list(message.capabilities.models))
        return await super()._enrol(request)


async def test_a_client_tells_its_models_when_it_enrols(bundle: Bundle, client_of: MakeClient) -> None:
    async with Registrar(bundle, fedavg_plan()) as server, client_of(server.url, models=("alexnet", "vgg")) as client:
        await client.run_once()

    assert server.told == [["alexnet", "vgg"]]


async def test_a_client_without_models_takes_any(bundle: Bundle, client_of: MakeClient) -> None:
    async with Registrar(bundle, fedavg_plan()) as server, client_of(server.url) as client:
        await client.run_once()

    assert server.told == [[]]


async def test_a_client_enrols_again_only_when_its_models_are_others(bundle: Bundle, client_of: MakeClient) -> None:
    async with Registrar(bundle, fedavg_plan(), rounds=3) as server:
        for models in (("alexnet",), ("alexnet",), ("resnet18",)):
            async with client_of(server.url, models=models) as client:
                await client.run_once()

    assert server.told == [["alexnet"], ["resnet18"]]
