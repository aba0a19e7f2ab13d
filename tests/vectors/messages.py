"""Every message that a client sends or reads, as bytes and as JSON, and the bodies of updates."""

from hashlib import sha256
from typing import Any

import numpy as np
from google.protobuf.message import Message

from fedlens_proto import wire
from fedlens_proto.blob import encode
from fedlens_proto.v1 import assignment_pb2, blob_pb2, check_in_pb2, enrolment_pb2, error_pb2, manifest_pb2, update_pb2
from fedlens_server import errors
from tests.vectors.forms import Files, arrays, document, encoded, hyper, message, refusal

_CLIENT = bytes(range(32))
_BUNDLE = sha256(b"a bundle").digest()
_SEED = sha256(b"a seed").digest()
_MODEL = sha256(b"a model").digest()
_BASE = sha256(b"the model of the round before").digest()

_FC = assignment_pb2.TensorSelector(kinds=[manifest_pb2.TENSOR_KIND_LINEAR], names=["fc.bias", "fc.weight"])
_CLASSIFIER = assignment_pb2.TensorSelector(roles=[manifest_pb2.TENSOR_ROLE_CLASSIFIER])
_GLOBAL = assignment_pb2.Source(download="global")


def _full_assignment() -> assignment_pb2.Assignment:
    """One that sets every field there is, though no method asks for all of it together."""
    pb = assignment_pb2
    difference = pb.Difference(sha256=sha256(b"a difference").digest(), size=5400, base=_BASE)
    return pb.Assignment(
        task=7,
        round=2**63 + 1,  # above what a signed 64-bit number holds
        phase=1,
        bundle=_BUNDLE,
        seed=_SEED,
        time_left_ms=120_000,
        sets=[
            pb.BlobSet(name="global", sha256=_MODEL, size=10_880, difference=difference),
            pb.BlobSet(name="extractor-0", sha256=sha256(b"an extractor").digest(), size=4096),
        ],
        local_plan=pb.LocalPlan(
            format=1,
            instructions=[
                pb.Instruction(
                    value="start",
                    assemble=pb.Assemble(
                        rules=[
                            pb.Rule(tensors=_CLASSIFIER, source=pb.Source(state="mine", download="initial")),
                            pb.Rule(source=_GLOBAL),
                        ]
                    ),
                ),
                pb.Instruction(
                    value="trained",
                    train=pb.Train(
                        program="step",
                        start="start",
                        epochs=2,
                        hyper_values=hyper(lr_classifier=0.05, momentum=0.9),
                        bindings=[
                            pb.Binding(reference="global", source=pb.Source(value="start")),
                            pb.Binding(reference="old", source=pb.Source(state="mine", download="global")),
                            pb.Binding(reference="counts", source=pb.Source(label_counts=True)),
                        ],
                        rows=pb.ROWS_TRAIN,
                    ),
                ),
                pb.Instruction(
                    value="distilled",
                    train=pb.Train(
                        program="distil",
                        start="trained",
                        steps=10,
                        hyper_values=hyper(lr_extractor=0),
                        bindings=[pb.Binding(reference="teacher", source=pb.Source(download="teacher"))],
                        rows=pb.ROWS_PUBLIC,
                    ),
                ),
                pb.Instruction(
                    value="sums",
                    derive=pb.Derive(
                        program="class_sums",
                        hyper_values=hyper(temperature=10),
                        bindings=[pb.Binding(reference="model", source=pb.Source(value="distilled"))],
                        rows=pb.ROWS_VALIDATION,
                    ),
                ),
            ],
            validation_percent=20,
            extractors=["extractor-0", "extractor-1"],
            keeps=[pb.Keep(state="mine", value="trained", tensors=_CLASSIFIER)],
            uploads=[
                pb.Upload(name="weights", value="trained", tensors=_FC, codec=pb.CODEC_INT8, base="global"),
                pb.Upload(name="sums", value="sums", codec=pb.CODEC_FLOAT32),
            ],
            evaluations=[
                pb.Evaluation(label="start", value="start"),
                pb.Evaluation(
                    label="nearest",
                    value="distilled",
                    program="predict_nearest",
                    bindings=[pb.Binding(reference="prototypes", source=pb.Source(download="prototypes"))],
                ),
            ],
            statistics=[
                pb.Statistic(class_counts=pb.ClassCounts()),
                pb.Statistic(label_distribution=pb.LabelDistribution(epsilon=0.5)),
                pb.Statistic(confusion=pb.Confusion()),
            ],
        ),
        answer=pb.ANSWER_UPDATE,
    )


def _evaluator_assignment() -> assignment_pb2.Assignment:
    pb = assignment_pb2
    return pb.Assignment(
        task=7,
        round=3,
        bundle=_BUNDLE,
        seed=_SEED,
        time_left_ms=1,
        sets=[pb.BlobSet(name="global", sha256=_MODEL, size=10_880)],
        local_plan=pb.LocalPlan(
            format=1,
            instructions=[pb.Instruction(value="m", assemble=pb.Assemble(rules=[pb.Rule(source=_GLOBAL)]))],
            evaluations=[pb.Evaluation(label="global", value="m")],
            statistics=[pb.Statistic()],
        ),
        answer=pb.ANSWER_EVALUATION,
    )


def _header() -> update_pb2.UpdateHeader:
    pb = update_pb2
    return pb.UpdateHeader(
        protocol=wire.PROTOCOL,
        phase=1,
        bundle=_BUNDLE,
        num_examples=70,
        class_counts=[50, 0, 20],
        evaluations=[
            pb.EvaluationSums(label="start", count=9, correct=4, loss=9.75, confusion=[2, 1, 0, 1, 2, 0, 3, 0, 0]),
            pb.EvaluationSums(label="nearest", count=9, correct=0, loss=0.1),
        ],
        label_distribution=[0.625, -0.125, 0.1],
    )


def _messages() -> dict[str, Message]:
    capabilities = enrolment_pb2.Capabilities(
        formats=[manifest_pb2.PROGRAM_FORMAT_PTE],
        bundle_classes=[manifest_pb2.BUNDLE_CLASS_FROZEN_BACKBONE],
        models=["mobilenet_v3_small"],
        plan_format=1,
        tables=["means", "scores"],
    )
    current = check_in_pb2.CurrentModel(
        task=7,
        bundle=_BUNDLE,
        sets=[assignment_pb2.BlobSet(name="global", sha256=_MODEL, size=10_880)],
        rules=[assignment_pb2.Rule(source=assignment_pb2.Source(state="model", download="global"))],
        extractors=["extractor-0"],
    )
    wait = check_in_pb2.Wait(
        retry_after_ms=1500, reason=check_in_pb2.WAIT_REASON_NEXT_ROUND, models=[current, check_in_pb2.CurrentModel()]
    )
    failure = update_pb2.FailureRequest(
        protocol=1, reason=update_pb2.FAILURE_REASON_BUNDLE, detail="program 'step' uses the operator “erf” — größer"
    )
    header = blob_pb2.BlobHeader(
        tensors=[
            blob_pb2.BlobTensor(name="counter", dtype=blob_pb2.DTYPE_INT64),
            blob_pb2.BlobTensor(name="fc.weight", dtype=blob_pb2.DTYPE_INT8, shape=[10, 512]),
        ],
        base=_BASE,
    )
    return {
        "enrol-request": enrolment_pb2.EnrolRequest(
            protocol=1, enrolment_token="fl1.token", client_id=_CLIENT, capabilities=capabilities
        ),
        "enrol-response": enrolment_pb2.EnrolResponse(role=enrolment_pb2.CLIENT_ROLE_TRAINER),
        "forget-request": enrolment_pb2.ForgetRequest(protocol=1),
        "forget-response": enrolment_pb2.ForgetResponse(aggregating=True),
        "forget-response-unset": enrolment_pb2.ForgetResponse(),
        "check-in-request": check_in_pb2.CheckInRequest(protocol=1, task=7, num_examples=3, hold_ms=30_000),
        "check-in-request-least": check_in_pb2.CheckInRequest(protocol=1),
        "check-in-response-assignment": check_in_pb2.CheckInResponse(assignment=_full_assignment()),
        "check-in-response-evaluator": check_in_pb2.CheckInResponse(assignment=_evaluator_assignment()),
        "check-in-response-wait": check_in_pb2.CheckInResponse(wait=wait),
        "check-in-response-finished": check_in_pb2.CheckInResponse(finished=check_in_pb2.Finished(models=[current])),
        "check-in-response-finished-without-models": check_in_pb2.CheckInResponse(finished=check_in_pb2.Finished()),
        "update-header": _header(),
        "receipt": update_pb2.Receipt(body_sha256=sha256(b"a body").digest()),
        "failure-request": failure,
        "failure-response": update_pb2.FailureResponse(),
        "blob-header": header,
    }


def _kinds(root: type[errors.ServerError] = errors.ServerError) -> list[type[errors.ServerError]]:
    found = [kind for child in root.__subclasses__() for kind in _kinds(child)]
    return [root, *found] if "code" in vars(root) and root is not errors.StoreUnusable else found


def _errors() -> dict[str, tuple[error_pb2.Error, int]]:
    """An answer for each code, with its status."""
    return {
        kind.code: (
            error_pb2.Error(
                code=kind.code,
                message=f"what was wrong, and what to do about {kind.code}",
                retry=kind.retry,
                retry_after_ms=2500 if kind.retry == error_pb2.RETRY_LATER else 0,
            ),
            kind.status.value,
        )
        for kind in sorted(_kinds(), key=lambda kind: (kind.status.value, kind.code))
    }


def _refused() -> dict[str, tuple[type[Message], bytes]]:
    request = encoded(check_in_pb2.CheckInRequest(protocol=1, task=7, num_examples=3))
    return {
        "protocol-unset": (check_in_pb2.CheckInRequest, b""),
        "protocol-of-a-later-version": (check_in_pb2.CheckInRequest, b"\x08\x02"),
        "cut-short": (enrolment_pb2.EnrolRequest, b"\x08\x01\x12\x05tok"),
        "wire-type-unknown": (check_in_pb2.CheckInRequest, request + b"\x0f"),
    }


def files() -> Files:
    """`messages.json`, `updates.json` and what they name."""
    found: Files = {}

    def entry(name: str, value: Message, raw: bytes | None = None) -> dict[str, Any]:
        found[f"messages/{name}.bin"] = encoded(value) if raw is None else raw
        return {"name": name, "type": value.DESCRIPTOR.full_name, "file": f"{name}.bin", "json": message(value)}

    listed = [entry(name, value) for name, value in _messages().items()]
    # Field 1000, a varint: tag 1000 * 8 = 8000 = c0 3e.
    request = check_in_pb2.CheckInRequest(protocol=1, task=7)
    listed.append(entry("check-in-request-of-a-later-version", request, encoded(request) + b"\xc0\x3e\x01"))
    answers = [
        entry(f"error-{code}", value) | {"status": status, "code": code} for code, (value, status) in _errors().items()
    ]
    refused = []
    for name, (kind, raw) in _refused().items():
        found[f"messages/refused/{name}.bin"] = raw
        listing = {"name": name, "type": kind.DESCRIPTOR.full_name, "file": f"refused/{name}.bin"}
        refused.append(listing | {"reason": refusal(wire.decode_request, kind, raw)})
    found["messages/messages.json"] = document({"messages": listed, "errors": answers, "refused": refused})
    found.update(_updates())
    return found


def _updates() -> Files:
    """The bodies of an update with two blobs, of one that uploads nothing, and of an evaluation."""
    tensors = {
        "weights": {"fc.weight": np.array([[0.5, -1.0], [0.25, 127.0]], np.float32)},
        "means": {"mean": np.array([0.75, -3.0], np.float32)},
    }
    blobs = {name: encode(each) for name, each in tensors.items()}
    uploading = _header()
    for name, raw in blobs.items():
        uploading.uploads.add(name=name, sha256=sha256(raw).digest(), size=len(raw))
    without = update_pb2.UpdateHeader(protocol=1, bundle=_BUNDLE, num_examples=70)
    evaluation = update_pb2.UpdateHeader(protocol=1, bundle=_BUNDLE, evaluations=_header().evaluations)
    bodies = {
        "update": ("PUT /v1/tasks/7/rounds/3/update", uploading),
        "update-without-a-blob": ("PUT /v1/tasks/7/rounds/3/update", without),
        "evaluation": ("PUT /v1/tasks/7/rounds/3/evaluation", evaluation),
    }
    found: Files = {}
    listed = []
    for name, (address, header) in bodies.items():
        body, placed = wire.frame_update(header), []
        header_bytes = len(body) - wire.LENGTH.size
        for upload in header.uploads:
            raw = blobs[upload.name]
            placed.append(
                {"name": upload.name, "offset": len(body), "bytes": len(raw), "tensors": arrays(tensors[upload.name])}
            )
            body += raw
        found[f"updates/{name}.bin"] = body
        listed.append(
            {
                "name": name,
                "file": f"{name}.bin",
                "request": address,
                "header_bytes": header_bytes,
                "header": message(header),
                "blobs": placed,
                "receipt": message(update_pb2.Receipt(body_sha256=sha256(body).digest())),
            }
        )
    found["updates/updates.json"] = document({"updates": listed})
    return found
