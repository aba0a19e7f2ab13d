package org.fedlens.sdk.model

/**
 * The models of one task on this phone; nothing of them is sent.
 *
 * @property task The task; null: no check-in has announced a model yet, and the rest is null, too.
 * @property inUse The model that predicts; null: none is on the phone yet.
 * @property newer A model that was announced or trained since; null: the one in use is the newest.
 * @property previous The model in use before; null: there was none, or it is no longer on the phone.
 */
public class Models internal constructor(
    public val task: Long?,
    public val inUse: Model? = null,
    public val newer: Model? = null,
    public val previous: Model? = null,
)

/**
 * A model on this phone: weights that the server announced, with the client state of that time.
 *
 * @property id Id, which grows with every new model and stays the same after a restart.
 * @property task Its task.
 * @property classNames Classes that it recognises, in label order; empty while its bundle is not on the phone.
 * @property knownSinceMs Time at which the phone learned of it, in milliseconds since 1970.
 * @property inUseSinceMs Time at which it last came into use; null: never.
 * @property result Result of its last test; null: it was not tested yet.
 */
public class Model internal constructor(
    public val id: Long,
    public val task: Long,
    public val classNames: List<String>,
    public val knownSinceMs: Long,
    public val inUseSinceMs: Long?,
    private val tested: Tested?,
) {
    public val result: TestResult? get() = tested?.let { TestResult(it.correct, it.hits.size) }

    /**
     * Number of test photos that this model classifies correctly and [other] does not; null unless both were tested on
     * the same photos.
     */
    public fun gainsOver(other: Model): Int? {
        if (tested == null || other.tested?.photos != tested.photos) return null
        return tested.hits.indices.count { tested.hits[it] && !other.tested.hits[it] }
    }
}

/**
 * The counts of a test on this phone's own test photos.
 *
 * @property correct Number of photos classified correctly.
 * @property count Number of photos: those whose class one of the models tested together knows. A class that this model
 *     does not know counts as wrong.
 */
public data class TestResult(
    val correct: Int,
    val count: Int,
)
