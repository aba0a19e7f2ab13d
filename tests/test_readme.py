"""README.md is short, and its script runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.integration.processes import free_ports

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
PHOTOS_PER_CLASS = 40
CLASSES = range(3)


def test_the_readme_can_be_read_at_a_sitting() -> None:
    assert len(README.splitlines()) <= 200


@pytest.mark.slow
def test_a_federation_by_hand_learns_and_predicts(tmp_path: Path) -> None:
    _put_digits(tmp_path / "photos" / "anna", first=0)
    _put_digits(tmp_path / "photos" / "ben", first=PHOTOS_PER_CLASS)
    (script,) = re.findall(r"<!-- by hand -->\n```bash\n(.*?)```\n", README, re.DOTALL)
    (tmp_path / "script").write_text(_on_free_ports(script))
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    finished = subprocess.run(
        # Seven commands start one after another; what hangs is found a little before the limit of every test.
        ["bash", "-eum", "script"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "5 of 5" in finished.stdout  # rounds, in the table of `task show`
    # Three digits by chance: a third. Files are told with their class, and lie in a folder of its name.
    predicted = re.findall(r"photos/anna/(\d)/\d+1\.png\W+(\d)\b", finished.stdout)
    assert len(predicted) == len(CLASSES) * PHOTOS_PER_CLASS // 10
    assert np.mean([truth == guess for truth, guess in predicted]) > 0.7


def _put_digits(folder: Path, first: int) -> None:
    """Scikit-learn's digits as PNG files, one sub-folder for each class."""
    digits = load_digits()
    for label in CLASSES:
        (folder / str(label)).mkdir(parents=True)
        images = digits.images[digits.target == label][first : first + PHOTOS_PER_CLASS]
        for i, image in enumerate(images):
            pixels = Image.fromarray((image * 255 / 16).astype(np.uint8))
            pixels.resize((32, 32), Image.Resampling.BILINEAR).save(folder / str(label) / f"{i:03}.png")


def _on_free_ports(script: str) -> str:
    """The script with other ports than the usual ones, which may be taken on this machine."""
    port, admin_port = free_ports(2)
    assert "fedlens serve --init server\n" in script
    return script.replace("--init server\n", f"--init server --port {port} --admin-port {admin_port}\n").replace(
        ":8443", f":{port}"
    )
