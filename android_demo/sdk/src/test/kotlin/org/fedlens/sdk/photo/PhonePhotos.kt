package org.fedlens.sdk.photo

import com.google.gson.JsonParser
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.int
import org.fedlens.sdk.objects
import org.fedlens.sdk.string
import java.io.File
import java.util.concurrent.TimeUnit

/**
 * Photos with Python's results; see `tests/phone_photos.py`.
 *
 * There are two of this object in a process, one of them for tests on Android's classes; both make the same files.
 */
object PhonePhotos {
    private val repository = Vectors.folder.parentFile.parentFile

    private val python = File(checkNotNull(System.getProperty("fedlens.python")) { "run by Maven" })

    /** The message of tests that are skipped because there are no photos. */
    val missing: String = "there is no $python to make the photos with"

    /** A photo with one size that it is scaled to. */
    class Input(
        private val folder: File,
        val name: String,
        val height: Int,
        val width: Int,
        private val file: String,
    ) {
        val content: ByteArray get() = File(folder, name).readBytes()

        /** uint8 [3, height, width]. */
        val expected: ByteArray get() = File(folder, file).readBytes()

        /** Leaves what was found beside what was expected, for tests that go on from there. */
        fun leave(
            found: ByteArray,
            decoder: String,
        ) {
            File(folder, "$file.$decoder").writeBytes(found)
        }
    }

    /** Each photo in each size; none if there is no Python here. */
    fun photos(): List<Input> {
        if (!python.canExecute()) return emptyList()
        val index = JsonParser.parseString(File(folder, "photos.json").readText()).asJsonObject
        return index.objects("photos").map {
            Input(folder, it.string("photo"), it.int("height"), it.int("width"), it.string("expected"))
        }
    }

    private val folder: File by lazy {
        val fresh = File(checkNotNull(System.getProperty("fedlens.phone.photos")) { "run by Maven" })
        fresh.mkdirs()
        val log = File(fresh, "log.txt")
        val process =
            ProcessBuilder(python.path, "-m", "tests.phone_photos", fresh.path)
                .directory(repository)
                .redirectErrorStream(true)
                .redirectOutput(log)
                .start()
        check(process.waitFor(15, TimeUnit.MINUTES)) { "tests.phone_photos does not end" }
        check(process.exitValue() == 0) { "tests.phone_photos failed:\n${log.readText()}" }
        fresh
    }
}
