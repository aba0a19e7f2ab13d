"""A client that trains where the photos are: `EdgeClient` and what it is made of."""

from fedlens_edge_client.album import Album, AlbumSnapshot, Photo
from fedlens_edge_client.client import EdgeClient
from fedlens_edge_client.errors import EdgeClientError
from fedlens_edge_client.folder_album import FolderAlbum
from fedlens_edge_client.policy import Policy

__all__ = ["Album", "AlbumSnapshot", "EdgeClient", "EdgeClientError", "FolderAlbum", "Photo", "Policy"]
