"""An album may be another one in each round: a partition changes it when the assignment arrives."""

from dataclasses import dataclass, field
from pathlib import Path

from fedlens_edge_client import AlbumSnapshot, FolderAlbum
from fedlens_edge_client.client.events import RoundStarted
from tests.edge_client.federation import Federation, Heard


@dataclass
class Growing:
    """In round n the first 4 n photos of a folder; before the first round 2."""

    folder: Path
    asked: list[int] = field(default_factory=list)

    def photos(self, round_number: int) -> AlbumSnapshot:
        self.asked.append(round_number)
        found = sorted(FolderAlbum(self.folder).photos(0).photos, key=lambda photo: photo.digest)
        return AlbumSnapshot(tuple(found[: 4 * round_number or 2]), {})


async def test_a_round_trains_on_the_album_of_its_own_number(
    federation: Federation, photos: Path, events: Heard
) -> None:
    album = Growing(photos)
    server = await federation.run(rounds=3, album=album)

    started = events.of(RoundStarted)
    assert [event.train_photos + event.test_photos for event in started] == [4, 8, 12]
    assert [server.header(number).num_examples for number in (1, 2, 3)] == [event.train_photos for event in started]
    # What a check-in tells is from before the assignment, and for information only.
    assert {request.num_examples for request in server.check_ins} <= {0, 1, 2}
    assert set(album.asked) == {0, 1, 2, 3}
