"""Anna has photographed cats alone, and Ben dogs: what each learns alone, together, and what a server would."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedlens.demo.comparison import Comparison, Predictions, Training, compare
from fedlens.demo.results import TaskFacts
from fedlens.demo.sections import sections
from fedlens.reports.confusion import confusion_section
from fedlens_edge_client.emulation.fleet.config import FleetConfig
from fedlens_edge_client.emulation.partitions import Partition, PartitionName, PhotoPool
from tests.edge_client.emulation.fleets import fleet_of
from tests.edge_client.linear import LinearEngine, make_bundle
from tests.edge_client.photo_folders import add_photos
from tests.fedlens.demo.demo_sample import NAMES, sample_answer

# Cats are red and dogs blue; the features are the means of red, green and blue.
KNOWS_BOTH = {"fc.weight": np.array([[1, 0, -1], [-1, 0, 1]], np.float32), "fc.bias": np.zeros(2, np.float32)}
KNOWS_CATS = {"fc.weight": np.zeros((2, 3), np.float32), "fc.bias": np.array([1, 0], np.float32)}
TRAINING = Training(epochs=40, hyper={"lr": 0.5})


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> FleetConfig:
    root = tmp_path_factory.mktemp("comparison")
    add_photos(root / "photos" / "anna", "cat", 10, seed=1)
    add_photos(root / "photos" / "ben", "dog", 5, seed=2)
    partition = Partition(name=PartitionName.CLIENTS, seed=1, clients=2)
    return fleet_of(PhotoPool.open(root / "photos"), partition, root / "state", photo_features=root / "features")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> LinearEngine:
    return LinearEngine(make_bundle(tmp_path_factory.mktemp("bundle") / "bundle"))


@pytest.fixture(scope="module")
def compared(fleet: FleetConfig, engine: LinearEngine) -> Comparison:
    return compare(fleet, engine, KNOWS_CATS, alone=TRAINING, pooled=TRAINING)


@pytest.fixture(scope="module")
def facts() -> TaskFacts:
    return TaskFacts.of(sample_answer(), NAMES)


@pytest.fixture(scope="module")
def told(compared: Comparison, facts: TaskFacts) -> tuple[str, str]:
    return sections(compared, facts)


def test_all_ways_answer_the_same_test_photos(compared: Comparison) -> None:
    # One in five of each owner's photos: two cats and one dog.
    assert sorted(compared.labels.tolist()) == [0, 0, 1]
    assert {path.parent.name for path in compared.paths} == {"cat", "dog"}
    assert [len(answers.labels) for answers in (compared.together, *compared.alone)] == [3, 3, 3]


def test_who_trains_alone_on_one_class_knows_that_class_and_a_server_with_all_photos_both(
    compared: Comparison,
) -> None:
    anna, ben = compared.alone

    assert anna.labels.tolist() == [0, 0, 0]
    assert ben.labels.tolist() == [1, 1, 1]
    # Anna is right about 2 of 3 photos, Ben about 1 of 3.
    assert compared.alone_accuracy == pytest.approx(0.5)
    assert compared.pooled is not None and compared.pooled.accuracy() == 1.0


def test_the_shared_model_alone_is_tested_as_it_is_and_its_report_begins_with_its_figures(
    fleet: FleetConfig, engine: LinearEngine, facts: TaskFacts
) -> None:
    found = compare(fleet, engine, KNOWS_BOTH, alone=None, pooled=None)

    assert found.together.accuracy() == 1.0
    assert found.mistakes == []
    assert (found.alone, found.pooled) == ((), None)
    ways, details = sections(found, facts)
    assert (ways, "By class" in details, "By client" in details) == ("", True, False)


def test_clients_are_tested_on_their_own_photos(compared: Comparison) -> None:
    assert compared.names == ("client 0 (anna)", "client 1 (ben)")
    assert [compared.labels[own].tolist() for own in compared.own] == [[0, 0], [1]]
    assert [answers.accuracy(own) for answers, own in zip(compared.alone, compared.own, strict=True)] == [1.0, 1.0]


def test_the_bytes_of_a_server_are_those_of_the_train_photos(compared: Comparison, fleet: FleetConfig) -> None:
    files = [photo.path for members in fleet.pool.train for photo in members]

    assert len(files) == 12
    assert compared.photo_bytes == sum(path.stat().st_size for path in files)


def test_the_same_seed_trains_the_same_models(compared: Comparison, fleet: FleetConfig, engine: LinearEngine) -> None:
    again = compare(fleet, engine, KNOWS_CATS, alone=TRAINING, pooled=TRAINING)

    assert again.pooled is not None and compared.pooled is not None
    assert np.array_equal(again.pooled.probabilities, compared.pooled.probabilities)


def test_the_surest_mistakes_come_first(compared: Comparison) -> None:
    answers = Predictions(
        labels=np.array([0, 1, 1]), probabilities=np.array([0.9, 0.6, 0.8]), correct=np.array([True, False, False])
    )

    assert replace(compared, together=answers).mistakes == [2, 1]


def test_a_report_begins_with_the_three_ways_and_their_bytes(compared: Comparison, told: tuple[str, str]) -> None:
    ways, details = told

    # Ten committed rounds of 20 clients, less one update: 199 x 247,400 bytes are 49.2 MB, 246 kB a client and round.
    for text in ("Together, without sharing photos", "nothing sent", "49.2 MB of weights sent", "246 kB in a round"):
        assert text in ways
    assert f"{compared.photo_bytes / 1000:.1f} kB of photos sent" in ways
    for text in ("By class", "Still wrong", "By client"):
        assert f"<h2>{text}</h2>" in details


def test_a_report_shows_what_is_still_wrong_and_says_that_the_pictures_are_inside(told: tuple[str, str]) -> None:
    _, details = told

    # The model that knows cats alone takes the one dog for a cat.
    assert details.count('src="data:image/jpeg;base64,') == 1
    assert "<b>dog</b><br>taken for cat" in details
    assert "1 of 3 test photos" in details
    assert "do not pass it on where the photos are private" in details


def test_a_report_shows_which_class_is_taken_for_which(told: tuple[str, str]) -> None:
    # Two cats are cats; the one dog is taken for a cat. A full row has the darkest shade, 55 %.
    cats = '<tr><th scope="row">cat</th><td style="--part: 55%">2</td><td></td></tr>'
    dogs = '<tr><th scope="row">dog</th><td style="--part: 55%">1</td><td></td></tr>'
    assert cats + dogs in told[1]


def test_of_many_classes_those_that_are_mixed_up_most_are_shown(compared: Comparison) -> None:
    # One photo of each of 40 classes; that of class 35 is taken for class 38.
    labels = np.arange(40)
    answers = np.where(labels == 35, 38, labels)
    together = Predictions(labels=answers, probabilities=np.ones(40), correct=answers == labels)
    many = replace(compared, class_names=tuple(f"c{i:02}" for i in range(40)), labels=labels, together=together)

    shown = confusion_section(many.confusion, many.class_names)

    rows = re.findall('<th scope="row">(c[0-9]+)</th>', shown)
    assert rows == [f"c{i:02}" for i in (*range(28), 35, 38)]
    assert "The 30 classes that are confused most." in shown


def test_a_class_folder_of_markup_is_text(compared: Comparison, facts: TaskFacts) -> None:
    _, details = sections(replace(compared, class_names=("<b>", "dog")), facts)

    assert "taken for &lt;b&gt;" in details
