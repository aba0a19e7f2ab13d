package org.fedlens.sdk.store

import kotlin.random.Random

/** One change of a client's stores. */
sealed interface Step {
    /** A result of [round] with tensors of [value] enters the outbox; large ones are files. */
    data class Put(
        val round: Long,
        val value: Int,
        val upload: Boolean,
        val state: Boolean,
        val large: Boolean,
    ) : Step

    data object Deliver : Step

    data object Refuse : Step

    data class Add(
        val content: Int,
        val label: String?,
    ) : Step

    data class Label(
        val id: Long,
        val label: String?,
    ) : Step

    data class Delete(
        val id: Long,
    ) : Step

    data object DeleteAll : Step

    data class Obtain(
        val blob: Int,
    ) : Step
}

/** Everything visible of the stores from outside, including files. */
data class Snapshot(
    val outbox: List<Pair<Long, Int?>> = emptyList(),
    val current: Int? = null,
    val clientState: List<Pair<Long, Boolean>> = emptyList(),
    val journal: List<Pair<Long, JournalEntry.Outcome>> = emptyList(),
    val largeValues: Set<Int> = emptySet(),
    val photos: List<Triple<Long, Int, String?>> = emptyList(),
    val photoFiles: Set<Int> = emptySet(),
    val parts: Set<Int> = emptySet(),
)

/** Steps drawn from a seed, with a simple model's expectation before the first and after each of them. */
class Script(
    seed: Int,
    steps: Int,
) {
    private class StateOfRound(
        val round: Long,
        val value: Int,
        val large: Boolean,
    )

    private val random = Random(seed)
    private val outbox = ArrayList<Step.Put>()
    private val pending = ArrayList<StateOfRound>()
    private var current: StateOfRound? = null
    private val journal = LinkedHashMap<Long, JournalEntry.Outcome>()
    private val photos = LinkedHashMap<Long, Pair<Int, String?>>()
    private var photosAdded = 0L
    private val parts = HashSet<Int>()
    private var rounds = 0L

    val snapshots: MutableList<Snapshot> = mutableListOf(Snapshot())
    val steps: List<Step> =
        List(steps) {
            draw().also { step ->
                apply(step)
                snapshots += snapshot()
            }
        }

    private fun draw(): Step =
        when (random.nextInt(14)) {
            in 0..2 -> {
                val (upload, state, large) = List(3) { random.nextBoolean() }
                Step.Put(++rounds, random.nextInt(1, 1000), upload, state, large)
            }
            in 3..4 -> Step.Deliver
            5 -> Step.Refuse
            in 6..8 -> Step.Add(random.nextInt(CONTENTS), label())
            9 -> Step.Label(anyPhoto(), label())
            in 10..11 -> Step.Delete(anyPhoto())
            12 -> if (random.nextInt(5) == 0) Step.DeleteAll else Step.Add(random.nextInt(CONTENTS), label())
            else -> Step.Obtain(random.nextInt(CONTENTS))
        }

    private fun label() = listOf("cat", "dog", null).random(random)

    private fun anyPhoto() = if (photosAdded == 0L) 1 else random.nextLong(1, photosAdded + 1)

    private fun apply(step: Step) {
        when (step) {
            is Step.Put -> {
                outbox += step
                if (step.state) pending += StateOfRound(step.round, -step.value, step.large)
                journal[step.round] = JournalEntry.Outcome.WAITING
            }
            Step.Deliver -> leave(JournalEntry.Outcome.DELIVERED) { mine -> mine?.let { current = it } }
            Step.Refuse -> leave(JournalEntry.Outcome.REFUSED) { }
            is Step.Add -> photos[++photosAdded] = step.content to step.label
            is Step.Label -> photos.computeIfPresent(step.id) { _, (content, _) -> content to step.label }
            is Step.Delete -> photos.remove(step.id)
            Step.DeleteAll -> photos.clear()
            is Step.Obtain -> parts += step.blob
        }
    }

    private fun leave(
        outcome: JournalEntry.Outcome,
        settle: (StateOfRound?) -> Unit,
    ) {
        val first = outbox.removeFirstOrNull() ?: return
        val mine = pending.firstOrNull { it.round == first.round }
        pending.remove(mine)
        settle(mine)
        journal[first.round] = outcome
    }

    private fun snapshot(): Snapshot {
        val states = listOfNotNull(current) + pending
        return Snapshot(
            outbox = outbox.map { it.round to it.value.takeIf { _ -> it.upload } },
            current = current?.value,
            clientState = states.map { it.round to (it === current) },
            journal = journal.toList().reversed(),
            largeValues =
                (outbox.filter { it.large && it.upload }.map { it.value } + states.filter { it.large }.map { it.value })
                    .toSet(),
            photos = photos.map { (id, photo) -> Triple(id, photo.first, photo.second) },
            photoFiles = photos.values.map { it.first }.toSet(),
            parts = parts.toSet(),
        )
    }

    companion object {
        const val CONTENTS = 6
    }
}
