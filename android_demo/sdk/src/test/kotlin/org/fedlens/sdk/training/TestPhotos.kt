package org.fedlens.sdk.training

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.Example
import org.fedlens.sdk.album.ExampleSource
import org.fedlens.sdk.album.Examples
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.photo.PixelSource
import org.fedlens.sdk.sha256
import java.io.File

/** Files of one colour, told apart by a number: `BM`, red, green, blue, number. */
internal object OneColour : PhotoDecoder {
    override fun decode(content: ByteArray): PixelSource {
        if (content.size != SIZE) throw PhotoException(PhotoException.Reason.DAMAGED, "not of one colour")
        val colour = content.drop(2).take(3).fold(0) { all, byte -> (all shl 8) or (byte.toInt() and 0xff) }
        return PixelSource.of(1, 1, intArrayOf(colour))
    }

    fun content(
        red: Int,
        green: Int,
        blue: Int,
        number: Int,
    ): ByteArray = "BM".toByteArray() + listOf(red, green, blue, number).map { it.toByte() }.toByteArray()

    private const val SIZE = 6
}

/** Photos in a folder; of those of each class every fifth is a test photo. */
internal class TestAlbum(
    private val folder: File,
) : ExampleSource {
    private val added = ArrayList<Photo>()

    /** Examples that are no photos in files. */
    val others = ArrayList<Example>()

    val photos: List<Photo> get() = added.toList()

    /** Files that the next snapshot reports as skipped. */
    var skipped: Map<String, List<String>> = emptyMap()

    /** Adds [count] photos; cats are red, all others blue. */
    fun add(
        label: String,
        count: Int,
        first: Int = 0,
    ): List<Photo> =
        (first until first + count).map { number ->
            val level = 5 * number % 256
            val content =
                if (label ==
                    "cat"
                ) {
                    OneColour.content(255, 0, level, number)
                } else {
                    OneColour.content(0, level, 255, number)
                }
            add(label, "$number.bmp", content, isTest = number % 5 == 4)
        }

    fun add(
        label: String,
        name: String,
        content: ByteArray,
        isTest: Boolean = false,
    ): Photo {
        val digest = sha256(content)
        val file = File(folder, "$label/$name")
        file.parentFile?.mkdirs()
        file.writeBytes(content)
        val copy = added.count { it.entry.photo.contentEquals(digest) }
        return Photo(AlbumEntry(digest, copy), label, file, isTest).also { added += it }
    }

    override fun examples() = Examples(added.toList() + others, skipped)
}
