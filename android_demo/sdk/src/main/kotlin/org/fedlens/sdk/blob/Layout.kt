package org.fedlens.sdk.blob

import com.google.protobuf.ByteString
import com.google.protobuf.InvalidProtocolBufferException
import org.fedlens.proto.v1.BlobHeader
import org.fedlens.proto.v1.BlobTensor
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import org.fedlens.sdk.KeyedHash
import java.nio.ByteBuffer
import java.nio.ByteOrder

/**
 * The positions of tensors in a blob. They follow from the tensors and the base alone, so a header cannot point
 * outside.
 *
 * @property specs Tensors, sorted by the UTF-8 bytes of their names.
 * @property size Size of the whole blob in bytes.
 */
public class Layout private constructor(
    public val specs: List<TensorSpec>,
    private val offsets: LongArray,
    public val size: Long,
    private val baseDigest: ByteArray?,
    internal val header: ByteArray,
) {
    /** SHA-256 of the base if the blob is a delta; null: plain weights. */
    public val base: ByteArray? get() = baseDigest?.copyOf()

    /** Offset of the data of tensor [index], in bytes from the start of the blob. */
    public fun offset(index: Int): Long = offsets[index]

    /** Size in bytes of everything before the first tensor's padding. */
    internal val prefixBytes: Int get() = PREFIX_BYTES + header.size

    /** Everything before the first tensor's padding. */
    internal val prefix: ByteArray
        get() =
            ByteBuffer
                .allocate(prefixBytes)
                .order(ByteOrder.LITTLE_ENDIAN)
                .put(MAGIC)
                .putInt(VERSION)
                .putInt(header.size)
                .put(header)
                .array()

    public companion object {
        /** Maximum size of a header in bytes. */
        public const val MAX_HEADER_BYTES: Int = 1 shl 20

        internal const val PREFIX_BYTES = 16
        private const val VERSION = 1
        private const val ALIGNMENT = 64L
        private const val MAX_NAME_BYTES = 255
        private const val MAX_DIMENSIONS = 32
        private val MAGIC = "FEDLENS\u0000".toByteArray(Charsets.US_ASCII)

        // Control characters, line breaks, direction marks and lone surrogates. Fixed ranges, because Unicode tables
        // differ between platforms.
        private val NOT_IN_NAMES = listOf(0..0x1f, 0x7f..0x9f, 0x2028..0x202e, 0x2066..0x2069, 0xd800..0xdfff)
        private val KNOWN = setOf(Dtype.DTYPE_FLOAT32, Dtype.DTYPE_FLOAT16, Dtype.DTYPE_INT8, Dtype.DTYPE_INT64)

        /**
         * The layout of these tensors, given in any order.
         *
         * @param base SHA-256 of the base if the tensors are a delta; null: they are not.
         * @throws BlobException A name is used twice or not allowed, a type is unknown, or a dimension is zero or one
         *     too many.
         */
        public fun of(
            specs: Iterable<TensorSpec>,
            base: ByteArray? = null,
        ): Layout {
            specs.forEach(::check)
            val byName = Comparator(KeyedHash::compareUnsigned)
            val ordered = specs.map { it.name.toByteArray() to it }.sortedWith(compareBy(byName) { it.first })
            ordered.zipWithNext { (left, spec), (right, _) ->
                if (left.contentEquals(right)) throw notAllowed("tensor '${spec.name}' occurs twice")
            }
            return ofSorted(ordered.map { it.second }, base?.copyOf())
        }

        /**
         * Parse the layout from the first [length] bytes of a blob; null if more bytes are needed.
         *
         * @throws BlobException These bytes cannot start a blob.
         */
        public fun parse(
            start: ByteArray,
            length: Int = start.size,
        ): Layout? {
            if ((0 until minOf(length, MAGIC.size)).any { start[it] != MAGIC[it] }) {
                throw BlobException(Reason.NOT_A_BLOB, "not a blob: it does not start like one")
            }
            val headerBytes = headerBytes(start, length) ?: return null
            if (length < PREFIX_BYTES + headerBytes) return null
            val raw = start.copyOfRange(PREFIX_BYTES, PREFIX_BYTES + headerBytes)
            val message =
                try {
                    BlobHeader.parseFrom(raw)
                } catch (error: InvalidProtocolBufferException) {
                    throw BlobException(Reason.DAMAGED_HEADER, "the blob header is damaged: ${error.message}", error)
                }
            val layout = of(message.tensorsList.map(::specOf), message.base.toByteArray().takeIf { it.isNotEmpty() })
            if (!layout.header.contentEquals(raw)) {
                throw BlobException(
                    Reason.DAMAGED_HEADER,
                    "the blob header is not in its canonical form (order, unknown fields or encoding)",
                )
            }
            return layout
        }

        /** The length of the header, from the first bytes of a blob; null if more bytes are needed. */
        internal fun headerBytes(
            start: ByteArray,
            length: Int,
        ): Int? {
            if (length < PREFIX_BYTES) return null
            val numbers = ByteBuffer.wrap(start, MAGIC.size, PREFIX_BYTES - MAGIC.size).order(ByteOrder.LITTLE_ENDIAN)
            val version = Integer.toUnsignedLong(numbers.getInt())
            if (version != VERSION.toLong()) {
                val message = "blob version $version is unknown; this program reads version $VERSION"
                throw BlobException(Reason.UNKNOWN_VERSION, message)
            }
            val found = Integer.toUnsignedLong(numbers.getInt())
            if (found > MAX_HEADER_BYTES) throw headerTooLong(found)
            return found.toInt()
        }

        private fun specOf(tensor: BlobTensor): TensorSpec {
            if (tensor.shapeCount > MAX_DIMENSIONS) throw tooManyDimensions(tensor.name, tensor.shapeCount)
            return TensorSpec(tensor.name, tensor.dtype, tensor.shapeList.toList())
        }

        private fun ofSorted(
            specs: List<TensorSpec>,
            base: ByteArray?,
        ): Layout {
            if (base != null && base.size != KeyedHash.DIGEST_BYTES) {
                val message = "the base's digest must have ${KeyedHash.DIGEST_BYTES} bytes, found ${base.size}"
                throw BlobException(Reason.DAMAGED_HEADER, message)
            }
            val message = BlobHeader.newBuilder()
            for (spec in specs) {
                message.addTensors(
                    BlobTensor
                        .newBuilder()
                        .setName(spec.name)
                        .setDtype(spec.dtype)
                        .addAllShape(spec.shape),
                )
            }
            if (base != null) message.setBase(ByteString.copyFrom(base))
            val header = message.build().toByteArray()
            if (header.size > MAX_HEADER_BYTES) throw headerTooLong(header.size.toLong())
            val offsets = LongArray(specs.size)
            var end = PREFIX_BYTES + header.size.toLong()
            specs.forEachIndexed { i, spec ->
                offsets[i] = (end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT
                end = offsets[i] + spec.bytes
                if (end !in 0..Long.MAX_VALUE - ALIGNMENT) {
                    throw BlobException(Reason.TOO_LARGE, "up to $spec the blob has more bytes than can be counted")
                }
            }
            return Layout(specs, offsets, end, base, header)
        }

        private fun check(spec: TensorSpec) {
            val name = spec.name
            if (!isPrintable(name) || name.toByteArray().size !in 1..MAX_NAME_BYTES) {
                val start = name.take(40)
                throw notAllowed("tensor name '$start' is empty, longer than $MAX_NAME_BYTES bytes or not printable")
            }
            if (spec.dtype !in KNOWN) throw notAllowed("tensor '$name' has a type that this version does not read")
            if (spec.shape.size > MAX_DIMENSIONS) throw tooManyDimensions(name, spec.shape.size)
            if (spec.dtype == Dtype.DTYPE_INT8 && spec.shape.size < 2) {
                throw notAllowed("tensor '$name' is int8 of ${spec.shape.size} dimensions; it must have 2 or more")
            }
            if (0L in spec.shape) throw notAllowed("tensor '$name' has an empty dimension: ${spec.shape}")
            // An unsigned number of 64 bits reads as negative.
            if (spec.shape.any { it < 0 }) {
                throw BlobException(Reason.TOO_LARGE, "tensor '$name' has more elements than can be counted")
            }
        }

        /** True if a name has no control character, and none that breaks lines or turns the direction of text. */
        internal fun isPrintable(name: String): Boolean =
            name.codePoints().noneMatch { code -> NOT_IN_NAMES.any { code in it } }

        private fun notAllowed(message: String) = BlobException(Reason.TENSOR_NOT_ALLOWED, message)

        private fun tooManyDimensions(
            name: String,
            found: Int,
        ) = notAllowed("tensor '$name' has $found dimensions; at most $MAX_DIMENSIONS are allowed")

        private fun headerTooLong(found: Long) =
            BlobException(Reason.TOO_LARGE, "blob header of $found bytes; at most $MAX_HEADER_BYTES are allowed")
    }
}
