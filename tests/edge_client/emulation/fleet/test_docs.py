import re
from pathlib import Path

from fedlens.commands.fleet import PartitionChoice
from fedlens_edge_client.emulation.faults import Fault, FaultKind, FaultPlan
from fedlens_edge_client.emulation.partitions import PartitionName, PhotoPool
from fedlens_edge_client.emulation.presence import PresencePlan

DOCS = Path(__file__).parents[4] / "docs" / "fleet.md"


def test_the_plans_in_the_docs_can_be_loaded(tmp_path: Path) -> None:
    samples = re.findall(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    for name, sample in zip(("faults.toml", "presence.toml"), samples, strict=True):
        (tmp_path / name).write_text(sample, encoding="utf-8")

    plan = FaultPlan.load(tmp_path / "faults.toml")

    assert PresencePlan.load(tmp_path / "presence.toml").time_zones == 3

    assert plan.of(3, 2) == Fault(FaultKind.DELAY, 1.5)
    assert plan.of(4, 2) == Fault(FaultKind.NAN)


def test_the_table_in_the_docs_can_be_read(tmp_path: Path) -> None:
    (sample,) = re.findall(r"```csv\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)
    (tmp_path / "people.csv").write_text(sample, encoding="utf-8")
    for row in sample.splitlines()[1:]:
        file = tmp_path / row.split(",")[0]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(row.encode())

    pool = PhotoPool.open(tmp_path)

    assert (pool.owners, pool.class_names) == (("anna", "ben"), ("apple", "pear"))


def test_every_partition_and_fault_is_in_the_docs() -> None:
    text = DOCS.read_text(encoding="utf-8")

    assert all(f"| `{name}` |" in text for name in (*PartitionName, *FaultKind))


def test_the_command_offers_every_partition() -> None:
    assert [choice.value for choice in PartitionChoice] == [name.value for name in PartitionName]
