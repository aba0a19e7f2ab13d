"""Cross-entropy of softmax over the classes, in nats: the local loss of FedAvg (McMahan et al. 2017)."""

from torch import Tensor
from torch.func import grad_and_value
from torch.nn import functional

from fedlens_export.hyper import Scalars
from fedlens_export.network import References, Tensors
from fedlens_export.objectives.objective import Batch, Forward, Objective, Outcome, masked_mean, without_padding


def gradients(forward: Forward, weights: Tensors, batch: Batch, references: References, hyper: Scalars) -> Outcome:
    """Mean cross-entropy over the real rows, and its gradients; references and hyper-parameters are not used."""
    del references, hyper
    inputs = without_padding(batch.inputs, batch.mask)

    def loss(trained: Tensors) -> tuple[Tensor, tuple[Tensor, Tensors]]:
        logits, buffers = forward(trained, inputs)
        losses = functional.cross_entropy(logits, batch.labels, reduction="none")
        return masked_mean(losses, batch.mask), (logits, buffers)

    found, (value, (logits, buffers)) = grad_and_value(loss, has_aux=True)(weights)
    return Outcome(gradients=found, loss=value, logits=logits, buffers=buffers)


OBJECTIVE = Objective(name="cross_entropy", hyper=(), references=(), gradients=gradients)
