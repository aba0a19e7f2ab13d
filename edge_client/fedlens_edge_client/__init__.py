"""A federated-learning client that trains where the photos are: `EdgeClient` and the types of its arguments."""

from fedlens_edge_client.client.client import EdgeClient
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.policy import Policy
from fedlens_edge_client.storage.album import Album, AlbumSnapshot, Photo
from fedlens_edge_client.storage.folder_album import FolderAlbum
from fedlens_edge_client.trust import TRUST_SERVER
from fedlens_proto.programs.statements import Publisher

__all__ = [
    "TRUST_SERVER",
    "Album",
    "AlbumSnapshot",
    "EdgeClient",
    "EdgeClientError",
    "FolderAlbum",
    "Photo",
    "Policy",
    "Publisher",
]
