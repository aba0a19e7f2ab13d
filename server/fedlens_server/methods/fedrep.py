"""FedRep: as FedPer, but each client trains its classifier first and then the extractor.

Paper: Collins et al., ICML 2021, https://arxiv.org/abs/2102.07078, Algorithm 1.

    paper      here                        meaning
    phi        shared[GLOBAL]              representation: the extractor
    h_i        client state `classifier`   head of client i, which never leaves it
    tau        epochs or steps             head updates with a frozen extractor: first training
               options.extractor_epochs    representation updates with a frozen classifier: second training

Deviations: clients are weighted by their numbers of examples, not uniformly, as in the comparisons of the papers that
FedLens reproduces. The extractor is trained for epochs, not steps. A frozen part has a learning rate of 0; each
training starts with fresh optimiser state.
"""

from fedlens_server.methods.fedper import sharing_extractor
from fedlens_server.planning import bundles, options
from fedlens_server.planning.local_plans import train
from fedlens_server.planning.method import Method, TaskPlan
from fedlens_server.planning.task_settings import SettingsError

OPTIONS = {"extractor_epochs": options.whole(1, 1_000_000, default=1)}
HEAD = "head"  # value: the weights after the first training
RATES = ("lr_classifier", "lr_extractor")


def for_task(task: TaskPlan) -> Method:
    """FedRep for a task: one phase with two trainings.

    Raises:
        SettingsError: The bundles' extractors cannot be averaged or their learning rates cannot be set; or a learning
            rate is 0, so that a training would train nothing.
    """
    settings = task.settings
    epochs = task.options["extractor_epochs"]
    of_extractor, of_classifier = ({**settings.hyper, frozen: 0.0} for frozen in RATES)
    head = train(settings, HEAD, hyper=of_classifier)
    method = sharing_extractor(task, head, train(settings, start=HEAD, hyper=of_extractor, epochs=epochs))
    bundles.need_hyper(task, *RATES)
    for rate in RATES:
        if bundles.hyper_value(settings, task.ordinary[0], rate) <= 0:
            raise SettingsError(f"hyper.{rate}", 0, "above 0 for fedrep, which freezes each part in turn itself")
    return method
