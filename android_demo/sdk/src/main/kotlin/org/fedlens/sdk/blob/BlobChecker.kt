package org.fedlens.sdk.blob

import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import org.fedlens.sdk.newSha256
import java.io.ByteArrayOutputStream

/**
 * A streaming check of a blob in chunks of any size: header, length, padding, finiteness, digest.
 *
 * Holds the header until it is complete, at most 1 MiB, and then one byte per row of the int8 tensor being checked.
 */
public class BlobChecker {
    private val hash = newSha256()
    private val pending = ByteArrayOutputStream()
    private var needed = 0
    private var layout: Layout? = null
    private var position = 0L
    private var tensor = 0
    private var check: ElementCheck? = null
    private var finished: ByteArray? = null

    /**
     * Take the next bytes.
     *
     * @throws BlobException No valid blob begins with these bytes.
     */
    public fun feed(
        bytes: ByteArray,
        from: Int = 0,
        count: Int = bytes.size - from,
    ) {
        check(finished == null) { "no bytes can follow the end of a blob" }
        hash.update(bytes, from, count)
        var at = from
        val end = from + count
        val known = layout
        if (known == null) {
            val before = pending.size()
            pending.write(bytes, at, minOf(end - at, Layout.PREFIX_BYTES + Layout.MAX_HEADER_BYTES - before))
            val found = readHeader() ?: return
            pending.reset()
            position = found.prefixBytes.toLong()
            at += found.prefixBytes - before
            layout = found
        }
        checkData(layout ?: return, bytes, at, end)
    }

    /**
     * The layout of the blob, after its last byte.
     *
     * @throws BlobException Bytes are missing.
     */
    public fun finish(): Layout {
        val found = layout ?: throw BlobException(Reason.TRUNCATED, "blob truncated inside its header")
        if (position != found.size) {
            val message = "blob truncated: $position bytes found, its header says ${found.size}"
            throw BlobException(Reason.TRUNCATED, message)
        }
        return found
    }

    /** SHA-256, 32 bytes, of all bytes fed; afterwards no more bytes can be fed. */
    public fun digest(): ByteArray = (finished ?: hash.digest().also { finished = it }).copyOf()

    private fun readHeader(): Layout? {
        // Parsed only once it can be complete: otherwise each small chunk would cost a copy of the header.
        if (pending.size() < needed) return null
        val start = pending.toByteArray()
        val found = Layout.parse(start)
        if (found == null) needed = Layout.PREFIX_BYTES + (Layout.headerBytes(start, start.size) ?: 0)
        return found
    }

    private fun checkData(
        layout: Layout,
        bytes: ByteArray,
        from: Int,
        end: Int,
    ) {
        if (end - from > layout.size - position) {
            val message = "bytes after the end of the blob, which its header puts at ${layout.size}"
            throw BlobException(Reason.TRAILING_BYTES, message)
        }
        var at = from
        while (at < end) {
            val spec = layout.specs[tensor]
            val start = layout.offset(tensor)
            val stop = start + spec.bytes
            val run = minOf((end - at).toLong(), (if (position < start) start else stop) - position).toInt()
            if (position < start) {
                if ((at until at + run).any { bytes[it] != 0.toByte() }) {
                    throw BlobException(Reason.DAMAGED_PADDING, "padding before tensor '${spec.name}' is not zero")
                }
            } else {
                val current = check ?: ElementCheck.of(spec).also { check = it }
                current.take(bytes, at, at + run)
            }
            at += run
            position += run
            if (position == stop) {
                tensor++
                check = null
            }
        }
    }
}

/** A check of one tensor's elements, given in chunks that may split an element. */
private sealed class ElementCheck {
    /** Take the next bytes, from [from] to before [end]. */
    abstract fun take(
        bytes: ByteArray,
        from: Int,
        end: Int,
    )

    companion object {
        fun of(spec: TensorSpec): ElementCheck =
            when (spec.dtype) {
                Dtype.DTYPE_FLOAT32 -> Float32(spec.name)
                Dtype.DTYPE_FLOAT16 -> Half(spec.name)
                Dtype.DTYPE_INT8 -> Scaled(spec)
                else -> Anything
            }

        private fun notFinite(name: String) =
            BlobException(Reason.NOT_FINITE, "tensor '$name' holds a NaN or an infinity")
    }

    private object Anything : ElementCheck() {
        override fun take(
            bytes: ByteArray,
            from: Int,
            end: Int,
        ) = Unit
    }

    /** The exponent of a float32 is in its last two bytes; all bits set: a NaN or an infinity. */
    private class Float32(
        private val name: String,
    ) : ElementCheck() {
        private var place = 0
        private var upper = 0

        override fun take(
            bytes: ByteArray,
            from: Int,
            end: Int,
        ) {
            var at = from
            while (at < end && place != 0) at = one(bytes, at)
            // In this form the JVM checks the loop's bounds only once.
            val lastWhole = end - 3
            while (at < lastWhole) {
                if (bytes[at + 3].toInt() and 0x7f == 0x7f && bytes[at + 2] < 0) throw notFinite(name)
                at += 4
            }
            while (at < end) at = one(bytes, at)
        }

        private fun one(
            bytes: ByteArray,
            at: Int,
        ): Int {
            val byte = bytes[at].toInt()
            if (place == 3 && byte and 0x7f == 0x7f && upper < 0) throw notFinite(name)
            upper = byte
            place = (place + 1) and 3
            return at + 1
        }
    }

    private class Half(
        private val name: String,
    ) : ElementCheck() {
        private var isUpper = false

        override fun take(
            bytes: ByteArray,
            from: Int,
            end: Int,
        ) {
            for (at in (if (isUpper) from else from + 1) until end step 2) {
                if (!Float16.isFinite(bytes[at])) throw notFinite(name)
            }
            if ((end - from) and 1 == 1) isUpper = !isUpper
        }
    }

    private class Scaled(
        spec: TensorSpec,
    ) : ElementCheck() {
        private val check = Int8Check(spec.name, spec.rowLength)
        private var scaleBytesLeft = spec.scales * TensorSpec.SCALE_BYTES
        private var bits = 0

        override fun take(
            bytes: ByteArray,
            from: Int,
            end: Int,
        ) {
            var at = from
            while (at < end && scaleBytesLeft > 0) {
                bits = (bits ushr 8) or (bytes[at++].toInt() shl 24)
                if (--scaleBytesLeft % TensorSpec.SCALE_BYTES == 0L) check.scale(Float.fromBits(bits))
            }
            while (at < end) check.value(bytes[at++])
        }
    }
}
