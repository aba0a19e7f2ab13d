package org.fedlens.sdk.blob

import org.fedlens.proto.v1.BlobHeader
import org.fedlens.proto.v1.BlobTensor
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.BlobException
import org.fedlens.sdk.BlobException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.content
import org.fedlens.sdk.objects
import org.fedlens.sdk.orNamedError
import org.fedlens.sdk.string
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.nio.ByteBuffer
import java.nio.ByteOrder
import kotlin.random.Random

class BlobDamageTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val blobs =
        Vectors.json("blobs/blobs.json").objects("blobs").associate {
            it.string("name") to Vectors.bytes("blobs/" + it.string("file"))
        }

    @Test
    fun `a blob cut anywhere is refused as truncated`() {
        for ((name, raw) in blobs) {
            for (length in raw.indices) {
                val cut = raw.copyOf(length)
                assertEquals("$name at $length", Reason.TRUNCATED, refused { Blob.fromBytes(cut) })
            }
        }
    }

    @Test
    fun `a file cut anywhere is refused when it is mapped`() {
        val file = folder.newFile()
        val raw = blobs.getValue("layer-int8")
        for (length in raw.indices) {
            file.writeBytes(raw.copyOf(length))
            assertEquals("at $length", Reason.TRUNCATED, refused { Blob.open(file) })
        }
        file.writeBytes(raw + 0)
        assertEquals(Reason.TRAILING_BYTES, refused { Blob.open(file) })
    }

    @Test
    fun `bytes behind the end are refused`() {
        for (raw in blobs.values) assertEquals(Reason.TRAILING_BYTES, refused { Blob.fromBytes(raw + 0) })
    }

    @Test
    fun `flipped bits end in a named error or in other finite numbers`() {
        val random = Random(20_240_603)
        for ((name, raw) in blobs) {
            repeat(3_000) {
                val damaged = raw.copyOf()
                val at = random.nextInt(damaged.size)
                damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                val found = orNamedError { Blob.fromBytes(damaged) } ?: return@repeat
                val floats = found.tensors.values.filterIsInstance<FloatTensor>()
                check(floats.all { tensor -> tensor.toArray().all { it.isFinite() } }) { "$name, byte $at" }
                check(!found.digest.contentEquals(Blob.fromBytes(raw).digest))
            }
        }
    }

    @Test
    fun `a blob in pieces of any size is checked as in one`() {
        val random = Random(20_240_604)
        for ((name, raw) in blobs) {
            repeat(50) {
                val checker = BlobChecker()
                var at = 0
                while (at < raw.size) {
                    val count = random.nextInt(0, minOf(70, raw.size - at) + 1)
                    checker.feed(raw, at, count)
                    at += count
                }
                assertEquals(name, raw.size.toLong(), checker.finish().size)
                assertArrayEquals(Blob.fromBytes(raw).digest, checker.digest())
            }
        }
    }

    @Test
    fun `not a number in any place of any piece is found`() {
        val nan = Float.fromBits(0x7f800001)
        for (place in 0 until 9) {
            val raw = BlobWriter.encode(mapOf("w" to FloatTensor.of(listOf(9), FloatArray(9))))
            ByteBuffer.wrap(raw).order(ByteOrder.LITTLE_ENDIAN).putFloat(raw.size - 4 * (9 - place), nan)
            for (piece in 1..raw.size) {
                val reason =
                    refused {
                        val checker = BlobChecker()
                        for (at in raw.indices step piece) checker.feed(raw, at, minOf(piece, raw.size - at))
                    }
                assertEquals("place $place in pieces of $piece", Reason.NOT_FINITE, reason)
            }
        }
    }

    @Test
    fun `sizes that a header claims are not allocated`() {
        val huge = listOf(1L shl 40, 1L shl 62, -1L)
        val types = listOf(Dtype.DTYPE_FLOAT32, Dtype.DTYPE_FLOAT16, Dtype.DTYPE_INT8, Dtype.DTYPE_INT64)
        for (size in huge) {
            for (type in types) {
                for (shape in listOf(listOf(size, 1L), listOf(1L, size), listOf(size, size))) {
                    val raw = withHeader(listOf(tensor("w", type, shape)))
                    check(refused { Blob.fromBytes(raw) } in setOf(Reason.TRUNCATED, Reason.TOO_LARGE))
                }
            }
        }
    }

    @Test
    fun `tensors that together have more bytes than can be counted are refused`() {
        val half = listOf(1L shl 60)
        val raw = withHeader(listOf("a", "b", "c").map { tensor(it, Dtype.DTYPE_FLOAT32, half) })
        assertEquals(Reason.TOO_LARGE, refused { Blob.fromBytes(raw) })
    }

    @Test
    fun `a header length that is not there is not allocated and not waited for beyond 1 MiB`() {
        val prefix = { length: Int ->
            ByteBuffer
                .allocate(16)
                .order(ByteOrder.LITTLE_ENDIAN)
                .put("FEDLENS\u0000".toByteArray())
                .putInt(1)
                .putInt(length)
                .array()
        }
        val file = folder.newFile()
        val lengths =
            mapOf((1 shl 20) to Reason.TRUNCATED, Int.MAX_VALUE to Reason.TOO_LARGE, -1 to Reason.TOO_LARGE)
        for ((length, reason) in lengths) {
            file.writeBytes(prefix(length))
            assertEquals(reason, refused { Blob.open(file) })
            assertEquals(reason, refused { Blob.fromBytes(prefix(length)) })
        }
    }

    @Test
    fun `a name with half a surrogate pair is refused`() {
        val tensors = mapOf("a\ud800" to LongTensor.of(emptyList(), LongArray(1)))
        assertEquals(Reason.TENSOR_NOT_ALLOWED, refused { BlobWriter.encode(tensors) })
    }

    @Test
    fun `which characters a name may have does not depend on the version of Unicode`() {
        // As in docs/protocol.md; the first and last of each range, and those just outside of it.
        val refused = listOf(0, 0x1f, 0x7f, 0x80, 0x9f, 0x2028, 0x2029, 0x202a, 0x202e, 0x2066, 0x2069, 0xd800, 0xdfff)
        // Among them characters for private use, one that is not assigned yet, and the last of all.
        val outside = listOf(0x20, 0x7e, 0xa0, 0xe9, 0x2027, 0x202f, 0x2065, 0x206a, 0xd7ff, 0xe000)
        val taken = outside + listOf(0x4e2d, 0x0378, 0x1f600, 0x10ffff)
        val encoded = { code: Int ->
            BlobWriter.encode(mapOf("a" + String(Character.toChars(code)) to LongTensor.of(emptyList(), LongArray(1))))
        }
        for (code in refused) assertEquals("$code", Reason.TENSOR_NOT_ALLOWED, refused { encoded(code) })
        for (code in taken) {
            val name = Blob.fromBytes(encoded(code)).tensors.keys.single()
            assertEquals(code, name.codePointAt(1))
        }
    }

    @Test
    fun `elements are read in runs from anywhere as in whole`() {
        val random = Random(20_240_605)
        for (raw in blobs.values) {
            for ((name, tensor) in Blob.fromBytes(raw).tensors) {
                if (tensor !is FloatTensor) continue
                val whole = tensor.toArray()
                repeat(20) {
                    val from = random.nextInt(whole.size)
                    val run = FloatArray(random.nextInt(whole.size - from) + 1)
                    tensor.read(from.toLong(), run)
                    assertArrayEquals(name, whole.copyOfRange(from, from + run.size), run, 0f)
                }
                assertThrows(IndexOutOfBoundsException::class.java) { tensor.read(1, FloatArray(whole.size)) }
            }
        }
    }

    @Test
    fun `a blob larger than the heap is written and checked piece by piece`() {
        val rows = Runtime.getRuntime().maxMemory() / (4L shl 10) + 1
        val checker = BlobChecker()
        val stream =
            object : java.io.OutputStream() {
                override fun write(byte: Int) = checker.feed(byteArrayOf(byte.toByte()))

                override fun write(
                    bytes: ByteArray,
                    from: Int,
                    count: Int,
                ) = checker.feed(bytes, from, count)
            }
        val written = BlobWriter.write(stream, mapOf("w" to Ramp(listOf(rows, 1L shl 10))))
        assertEquals(written.size, checker.finish().size)
        assertArrayEquals(written.digest, checker.digest())
    }

    @Test
    fun `differences of a blob with more rows than a run are those of whole arrays`() {
        val shape = listOf(3L, RUN_ELEMENTS + 5L)
        val base = FloatTensor.of(shape, Ramp(shape).toArray())
        val trained = FloatTensor.of(shape, FloatArray(base.toArray().size) { 0.5f * it })
        val taken = Differences.subtract(mapOf("w" to trained), mapOf("w" to base)).getValue("w") as FloatTensor
        val wanted = FloatArray(base.toArray().size) { trained.toArray()[it] - base.toArray()[it] }
        assertEquals(FloatTensor.of(shape, wanted).content(), taken.content())
    }

    /** The element with number i is i modulo 1000. */
    private class Ramp(
        override val shape: List<Long>,
    ) : FloatTensor {
        override fun read(
            from: Long,
            into: FloatArray,
            at: Int,
            count: Int,
        ) {
            for (i in 0 until count) into[at + i] = ((from + i) % 1000).toFloat()
        }
    }

    private fun refused(read: () -> Any): Reason = assertThrows(BlobException::class.java) { read() }.reason

    private fun tensor(
        name: String,
        type: Dtype,
        shape: List<Long>,
    ): BlobTensor =
        BlobTensor
            .newBuilder()
            .setName(name)
            .setDtype(type)
            .addAllShape(shape)
            .build()

    private fun withHeader(tensors: List<BlobTensor>): ByteArray {
        val header = BlobHeader.newBuilder().addAllTensors(tensors).build().toByteArray()
        val start =
            ByteBuffer
                .allocate(16 + header.size)
                .order(ByteOrder.LITTLE_ENDIAN)
                .put("FEDLENS\u0000".toByteArray())
                .putInt(1)
                .putInt(header.size)
                .put(header)
        return start.array() + ByteArray(200)
    }
}
