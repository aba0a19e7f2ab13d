import pytest
from typer.testing import CliRunner

from fedlens.cli import app


@pytest.mark.parametrize(
    "command",
    [
        ["export", "--model", "lenet5", "--classes-from", "photos"],
        ["fleet", "--server", "https://127.0.0.1:1", "--photos", "photos"],
        ["demo"],
    ],
)
def test_a_seed_that_no_generator_takes_is_refused(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--seed", str(1 << 32)])

    assert result.exit_code == 2
    assert "4294967295" in result.stderr
