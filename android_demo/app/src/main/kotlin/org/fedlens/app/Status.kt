package org.fedlens.app

import android.content.res.Resources
import org.fedlens.sdk.ClientState

/**
 * The status of learning, as shown to the owner.
 *
 * @property icon A drawable.
 * @property progress Null if nothing is under way.
 */
internal data class Status(
    val icon: Int,
    val title: String,
    val text: String,
    val action: Action,
    val progress: Progress? = null,
) {
    /** True if something went wrong. */
    val isFailure: Boolean get() = icon == R.drawable.ic_warning

    /** The action on offer. */
    enum class Action { LEARN, CANCEL, RESUME, NONE }

    /** The progress of running work. */
    sealed interface Progress {
        data object Unknown : Progress

        data class Known(
            val of1000: Int,
        ) : Progress
    }

    /**
     * The facts that determine the status.
     *
     * @property isTooHot True if the phone is too hot to learn.
     * @property labelled Number of photos with a class.
     * @property hasClasses True if the classes of a model are known.
     */
    data class Facts(
        val state: ClientState,
        val isRunning: Boolean,
        val isTooHot: Boolean,
        val isPaused: Boolean,
        val hasNetwork: Boolean,
        val labelled: Int,
        val hasClasses: Boolean,
    )

    companion object {
        /** The value of [Progress.Known] at completion. */
        const val FULL = 1000

        fun of(
            resources: Resources,
            facts: Facts,
        ): Status =
            when {
                facts.isPaused ->
                    resources.status(R.drawable.ic_pause, R.string.paused_title, R.string.paused_text, Action.RESUME)
                facts.isRunning && !facts.hasNetwork && facts.state !is ClientState.Training ->
                    noNetwork(resources, Action.CANCEL)
                facts.isRunning -> ofRunning(resources, facts.state)
                facts.isTooHot ->
                    resources.status(R.drawable.ic_waiting, R.string.too_hot_title, R.string.too_hot_text)
                isBad(facts.state) -> ended(resources, facts.state)
                facts.labelled == 0 && !facts.hasClasses ->
                    resources.status(R.drawable.ic_model, R.string.no_model_title, R.string.no_model_text)
                facts.labelled == 0 ->
                    resources.status(
                        R.drawable.ic_camera,
                        R.string.no_photos_title,
                        R.string.no_photos_text,
                        Action.NONE,
                    )
                !facts.hasNetwork -> noNetwork(resources, Action.LEARN)
                facts.state is ClientState.Reported || facts.state is ClientState.Finished ->
                    ended(resources, facts.state)
                // For longer than a job lasts.
                facts.state is ClientState.Waiting || facts.state is ClientState.Retrying ->
                    ofRunning(resources, facts.state).copy(action = Action.LEARN, progress = null)
                else ->
                    Status(
                        R.drawable.ic_model,
                        resources.getString(R.string.ready_title),
                        resources.getQuantityString(R.plurals.ready_text, facts.labelled, facts.labelled),
                        Action.LEARN,
                    )
            }

        /** The status while a round is under way or awaited. */
        fun ofRunning(
            resources: Resources,
            state: ClientState,
        ): Status =
            when (state) {
                is ClientState.Waiting ->
                    Status(
                        R.drawable.ic_waiting,
                        resources.getString(R.string.waiting_title),
                        resources.getString(waitingText(state.reason)),
                        Action.CANCEL,
                    )
                is ClientState.Preparing ->
                    busy(
                        resources.getString(R.string.preparing_title),
                        if (state.total == 0) {
                            resources.getString(R.string.preparing_text)
                        } else {
                            resources.getString(R.string.embedding_text, state.done, state.total)
                        },
                        share(state.done.toLong(), state.total.toLong()),
                    )
                is ClientState.Training ->
                    busy(
                        resources.getString(R.string.training_title),
                        if (state.steps == 0L) {
                            resources.getString(R.string.training_begins)
                        } else {
                            resources.getString(R.string.training_text, state.step, state.steps)
                        },
                        share(state.step, state.steps),
                    )
                is ClientState.Sending ->
                    busy(resources.getString(R.string.sending_title), resources.getString(R.string.sending_text))
                is ClientState.Retrying ->
                    Status(
                        R.drawable.ic_no_network,
                        resources.getString(R.string.retrying_title),
                        resources.getString(R.string.retrying_text, state.reason),
                        Action.CANCEL,
                        Progress.Unknown,
                    )
                else ->
                    busy(resources.getString(R.string.asking_title), resources.getString(R.string.asking_text))
            }

        private fun isBad(state: ClientState) = state is ClientState.Failed || state is ClientState.Refused

        /** The status after the last round. */
        private fun ended(
            resources: Resources,
            state: ClientState,
        ): Status =
            when (state) {
                is ClientState.Reported ->
                    Status(
                        R.drawable.ic_check,
                        resources.getString(R.string.reported_title),
                        resources.getString(R.string.reported_text),
                        Action.LEARN,
                    )
                is ClientState.Finished ->
                    resources.status(R.drawable.ic_check, R.string.finished_title, R.string.finished_text)
                is ClientState.Refused ->
                    Status(
                        R.drawable.ic_warning,
                        resources.getString(
                            if (state.task == null) R.string.refused_title else R.string.result_refused_title,
                        ),
                        resources.getString(R.string.refused_text, state.detail),
                        Action.LEARN,
                    )
                is ClientState.Failed -> failed(resources, state)
                else -> busy(resources.getString(R.string.asking_title), "")
            }

        private fun failed(
            resources: Resources,
            state: ClientState.Failed,
        ): Status {
            val (title, text) =
                when (state.reason) {
                    "untrusted" -> R.string.untrusted_title to R.string.untrusted_text
                    "unreachable" -> R.string.retrying_title to R.string.unreachable_text
                    "no_photos" -> R.string.no_photos_title to R.string.no_train_photos_text
                    "policy" -> R.string.policy_title to R.string.policy_text
                    "runtime_missing" -> R.string.runtime_title to R.string.runtime_text
                    else -> R.string.failed_title to R.string.failed_text
                }
            return Status(
                R.drawable.ic_warning,
                resources.getString(title),
                resources.getString(text, state.detail),
                Action.LEARN,
            )
        }

        private fun waitingText(reason: String): Int =
            when (reason) {
                "population" -> R.string.waiting_population
                "next_round" -> R.string.waiting_next_round
                "phase" -> R.string.waiting_phase
                "no_task" -> R.string.waiting_no_task
                "stopping" -> R.string.waiting_stopping
                "rest" -> R.string.waiting_rest
                "not_eligible" -> R.string.waiting_not_eligible
                "sits_out" -> R.string.waiting_sits_out
                "paused" -> R.string.waiting_paused
                "not_before" -> R.string.waiting_not_before
                else -> R.string.waiting_busy
            }

        private fun noNetwork(
            resources: Resources,
            action: Action,
        ) = resources.status(R.drawable.ic_no_network, R.string.no_network_title, R.string.no_network_text, action)

        private fun busy(
            title: String,
            text: String,
            progress: Progress = Progress.Unknown,
        ) = Status(R.drawable.ic_model, title, text, Action.CANCEL, progress)

        private fun share(
            done: Long,
            all: Long,
        ): Progress = if (all <= 0) Progress.Unknown else Progress.Known((done * FULL / all).toInt().coerceIn(0, FULL))

        private fun Resources.status(
            icon: Int,
            title: Int,
            text: Int,
            action: Action = Action.LEARN,
        ) = Status(icon, getString(title), getString(text), action)
    }
}
