package org.fedlens.sdk.blob

import com.sun.management.ThreadMXBean
import org.fedlens.proto.v1.Dtype
import org.fedlens.sdk.newSha256
import java.io.File
import java.io.InputStream
import java.io.OutputStream
import java.lang.management.ManagementFactory

private const val COPY_BYTES = 1 shl 16
private val THREADS = ManagementFactory.getThreadMXBean() as ThreadMXBean

/**
 * The time to encode the tensors of a blob into a file and to read them back, for `bench/phone_blobs.py`.
 *
 *     java ... org.fedlens.sdk.blob.BlobTimesKt BLOB FOLDER TURNS
 *
 * The floats of BLOB, a file, lie in the heap throughout; they are written to a file in FOLDER, which is then checked
 * and read into the same arrays. Prints a line for each kind of work: its name, the bytes that one turn allocates, and
 * milliseconds of processor time of TURNS turns; one unmeasured turn goes before.
 */
public fun main(arguments: Array<String>) {
    val (blob, folder, turns) = arguments
    val source = File(blob)
    val arrays =
        openChecked(source).tensors.mapValues { (_, tensor) -> tensor.shape to (tensor as FloatTensor).toArray() }
    val turn = Turn(source, File(folder, "turn"), arrays)
    val works =
        mapOf<String, () -> Any>(
            "copy" to turn::copy,
            "sha256" to turn::digest,
            "float32" to { turn.through(Dtype.DTYPE_FLOAT32) },
            "float16" to { turn.through(Dtype.DTYPE_FLOAT16) },
            "int8" to { turn.through(Dtype.DTYPE_INT8) },
        )
    for (work in works.values) work()
    val times = works.mapValues { mutableListOf<Double>() }
    repeat(turns.toInt()) {
        for ((name, work) in works) {
            turn.clear()
            times.getValue(name) += millisecondsOf(work)
        }
    }
    for ((name, work) in works) println("$name ${allocatedBy(work)} ${times.getValue(name).joinToString(" ")}")
}

private class Turn(
    private val source: File,
    private val target: File,
    private val arrays: Map<String, Pair<List<Long>, FloatArray>>,
) {
    /** Every file is a new one, as in an outbox; what was mapped before is let go. */
    fun clear() {
        target.delete()
        System.gc()
    }

    fun copy() = source.inputStream().use { from -> target.outputStream().use { into -> transfer(from, into::write) } }

    fun digest(): ByteArray {
        val hash = newSha256()
        source.inputStream().use { from -> transfer(from, hash::update) }
        return hash.digest()
    }

    fun through(floats: Dtype) {
        val tensors = arrays.mapValues { (_, found) -> FloatTensor.of(found.first, found.second) }
        val written = target.outputStream().use { into: OutputStream -> BlobWriter.write(into, tensors, floats) }
        val read = openChecked(target)
        check(read.digest.contentEquals(written.digest))
        for ((name, tensor) in read.tensors) (tensor as FloatTensor).read(0, arrays.getValue(name).second)
    }

    private fun transfer(
        from: InputStream,
        use: (ByteArray, Int, Int) -> Unit,
    ) {
        val piece = ByteArray(COPY_BYTES)
        while (true) {
            val count = from.read(piece)
            if (count < 0) return
            use(piece, 0, count)
        }
    }
}

private fun millisecondsOf(work: () -> Any): Double {
    val before = THREADS.currentThreadCpuTime
    work()
    return (THREADS.currentThreadCpuTime - before) / 1e6
}

/** An upper bound of the heap that [work] needs, as if nothing were ever collected. */
private fun allocatedBy(work: () -> Any): Long {
    val before = THREADS.currentThreadAllocatedBytes
    work()
    return THREADS.currentThreadAllocatedBytes - before
}
