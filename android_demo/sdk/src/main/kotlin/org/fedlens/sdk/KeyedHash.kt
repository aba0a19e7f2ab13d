package org.fedlens.sdk

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.util.Base64

/**
 * Client identity and client randomness, identical in every language.
 *
 * `H` is SHA-256 and `||` concatenation; integers are little-endian and unsigned; ids, secrets, seeds and digests are
 * 32 bytes.
 *
 *     client id        H("fedlens/client/v1" || secret)
 *     order of photos  ascending H("fedlens/order/v1" || seed || u32 training || u32 epoch || photo || u32 copy)
 *     step uniforms    words of H("fedlens/step/v1" || seed || u32 training || u32 step || u32 slot || u32 block)
 *     validation       first 8 bytes, big-endian, of H("fedlens/validation/v1" || photo)
 *     view uniforms    words of H("fedlens/view/v1" || seed || photo || u32 view || u32 block)
 *     choice of views  by the words of view 0, see [viewChoice]
 *
 * Functions throw an [IllegalArgumentException] for a value that is not 32 bytes long: callers check external input.
 */
public object KeyedHash {
    /** Length in bytes of a digest, an id, a secret and a seed. */
    public const val DIGEST_BYTES: Int = 32

    private const val WORDS_PER_BLOCK = 8
    private const val TEST_SHARE = 5
    private const val PERCENT = 100L

    /** The public id, 32 bytes, of the client that holds [secret]. */
    public fun clientId(secret: ByteArray): ByteArray = hash("fedlens/client/v1", sized(secret, "secret"))

    /** The value of the `Authorization` header of every request of the client that holds [secret]. */
    public fun authorization(secret: ByteArray): String =
        "Bearer " + Base64.getUrlEncoder().withoutPadding().encodeToString(sized(secret, "secret"))

    /**
     * The sort key, 32 bytes, of a photo within an epoch; keys are compared as unsigned bytes, ascending.
     *
     * @param training Number of the instruction `train` in the local plan, from 0.
     */
    public fun photoRank(
        seed: ByteArray,
        training: Int,
        epoch: Int,
        photo: ByteArray,
        copy: Int,
    ): ByteArray {
        sized(seed, "seed")
        sized(photo, "photo")
        return hash("fedlens/order/v1", seed, littleEndian(training, epoch), photo, littleEndian(copy))
    }

    /**
     * The order of the photos in one epoch.
     *
     * @return Indices into [entries], in the order of the epoch.
     */
    public fun photoOrder(
        seed: ByteArray,
        training: Int,
        epoch: Int,
        entries: List<AlbumEntry>,
    ): IntArray {
        val ranks = entries.map { photoRank(seed, training, epoch, it.photo, it.copy) }
        return entries.indices.sortedWith { a, b -> compareUnsigned(ranks[a], ranks[b]) }.toIntArray()
    }

    /** [count] uniform random numbers for one augmented view of a photo, in [0, 1), multiples of 2^-24. */
    public fun viewUniforms(
        seed: ByteArray,
        photo: ByteArray,
        view: Int,
        count: Int,
    ): FloatArray = uniforms(viewWords(seed, photo, view, count))

    /**
     * [count] uniform random numbers for one step of training, in [0, 1), multiples of 2^-24.
     *
     * @param training As in [photoRank].
     * @param step Number of the step, from 0.
     * @param slot Number of the input among the program's random ones, from 0.
     */
    public fun stepUniforms(
        seed: ByteArray,
        training: Int,
        step: Int,
        slot: Int,
        count: Int,
    ): FloatArray = uniforms(words("fedlens/step/v1", sized(seed, "seed") + littleEndian(training, step, slot), count))

    /**
     * [count] distinct indices, each in 0 until [stored], of the stored views that local training uses for a photo.
     *
     * The first steps of a Fisher-Yates shuffle: entry i of 0, 1, ... is swapped with entry i + (word i modulo stored -
     * i); then the first [count] entries are taken.
     */
    public fun viewChoice(
        seed: ByteArray,
        photo: ByteArray,
        stored: Int,
        count: Int,
    ): IntArray {
        require(count in 0..stored) { "$count of $stored views" }
        val order = IntArray(stored) { it }
        viewWords(seed, photo, 0, count).forEachIndexed { i, word ->
            val other = i + Integer.remainderUnsigned(word, stored - i)
            order[i] = order[other].also { order[other] = order[i] }
        }
        return order.copyOf(count)
    }

    /** True if the photo with this digest is a test photo: one in five is. */
    public fun isTestPhoto(photo: ByteArray): Boolean {
        val first = ByteBuffer.wrap(sized(photo, "photo")).getLong()
        return java.lang.Long.remainderUnsigned(first, TEST_SHARE.toLong()) == 0L
    }

    /** True if a photo outside the test set is for validation, the same in every round, for about [percent] of 100. */
    public fun isValidationPhoto(
        photo: ByteArray,
        percent: Int,
    ): Boolean {
        val first = ByteBuffer.wrap(hash("fedlens/validation/v1", sized(photo, "photo"))).getLong()
        return java.lang.Long.remainderUnsigned(first, PERCENT) < percent
    }

    /** Compare unsigned bytes lexicographically; a prefix comes first. */
    public fun compareUnsigned(
        left: ByteArray,
        right: ByteArray,
    ): Int {
        for (i in 0 until minOf(left.size, right.size)) {
            val difference = (left[i].toInt() and 0xff) - (right[i].toInt() and 0xff)
            if (difference != 0) return difference
        }
        return left.size - right.size
    }

    private fun viewWords(
        seed: ByteArray,
        photo: ByteArray,
        view: Int,
        count: Int,
    ): IntArray {
        sized(seed, "seed")
        sized(photo, "photo")
        return words("fedlens/view/v1", seed + photo + littleEndian(view), count)
    }

    private fun uniforms(words: IntArray) = FloatArray(words.size) { (words[it] ushr 8) / (1 shl 24).toFloat() }

    private fun words(
        domain: String,
        header: ByteArray,
        count: Int,
    ): IntArray {
        val words = IntArray(count)
        for (first in 0 until count step WORDS_PER_BLOCK) {
            val block = hash(domain, header, littleEndian(first / WORDS_PER_BLOCK))
            val here = minOf(WORDS_PER_BLOCK, count - first)
            ByteBuffer
                .wrap(block)
                .order(ByteOrder.LITTLE_ENDIAN)
                .asIntBuffer()
                .get(words, first, here)
        }
        return words
    }

    /** SHA-256 of [domain] in ASCII, followed by [parts]. */
    internal fun hash(
        domain: String,
        vararg parts: ByteArray,
    ): ByteArray {
        val digest = newSha256()
        digest.update(domain.toByteArray(Charsets.US_ASCII))
        parts.forEach(digest::update)
        return digest.digest()
    }

    /** These numbers as consecutive little-endian u32. */
    internal fun littleEndian(vararg values: Int): ByteArray {
        val buffer = ByteBuffer.allocate(Int.SIZE_BYTES * values.size).order(ByteOrder.LITTLE_ENDIAN)
        values.forEach(buffer::putInt)
        return buffer.array()
    }

    private fun sized(
        value: ByteArray,
        what: String,
    ): ByteArray {
        require(value.size == DIGEST_BYTES) { "$what must have $DIGEST_BYTES bytes, found ${value.size}" }
        return value
    }
}
