from pathlib import Path

import pytest

from fedlens_edge_client.errors import ModelError
from fedlens_edge_client.storage.model_file import read_model
from fedlens_proto import blob
from fedlens_proto.manifest import Bundle


def test_a_difference_is_not_read_as_a_model(bundle: Bundle, tmp_path: Path) -> None:
    initial = bundle.initial()
    (tmp_path / "model.blob").write_bytes(blob.encode(dict(initial), base=initial.digest))

    with pytest.raises(ModelError, match=f"the difference to blob {initial.digest.hex()}; a model must hold whole"):
        read_model(tmp_path / "model.blob", bundle)
