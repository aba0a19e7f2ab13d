package org.fedlens.sdk.photo

import org.fedlens.jvm.ImageIoDecoder
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import org.fedlens.sdk.Vectors
import org.fedlens.sdk.orNamedError
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import javax.imageio.ImageIO
import kotlin.math.abs
import kotlin.random.Random

class ImageIoDecoderTest : PhotoDecoderContract(ImageIoDecoder(), refused = setOf("lossy.webp")) {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun `a photo for which there is too little memory is left out`() {
        // 507 MB; the pixels, of which there are none, would be read after that.
        val error = assertThrows(PhotoException::class.java) { prepare(OddPhotos.png(13_000, 13_000), 8, 8) }
        assertEquals(error.message, Reason.TOO_LARGE, error.reason)
    }

    @Test
    fun `a jpeg of which pixels are missing is left out although it has an end`() {
        val whole = Vectors.bytes("photos/colour.jpg")
        val cut = whole.copyOf(OddPhotos.scanStart(whole) + 60) + OddPhotos.END_OF_IMAGE
        val error = assertThrows(PhotoException::class.java) { prepare(cut, 8, 8) }
        assertEquals(error.message, Reason.DAMAGED, error.reason)
    }

    @Test
    fun `no photo is copied into a file`() {
        val before = ImageIO.getCacheDirectory()
        ImageIO.setCacheDirectory(folder.root)
        try {
            // What cannot be made is missed.
            assertTrue(folder.root.delete())
            prepare(Vectors.bytes("photos/colour.jpg"), 8, 8)
        } finally {
            folder.root.mkdir()
            ImageIO.setCacheDirectory(before)
        }
    }
}

@RunWith(RobolectricTestRunner::class)
@GraphicsMode(GraphicsMode.Mode.NATIVE)
@Config(sdk = [35])
class BitmapDecoderTest : PhotoDecoderContract(BitmapDecoder(), nearly = setOf("grey-16-bit.png")) {
    @Test
    fun `a large photo of a format that Android decodes as a whole only is left out`() {
        val decoder = BitmapDecoder { null }
        val error = assertThrows(PhotoException::class.java) { decoder.decode(OddPhotos.bmp(4_128, 4_096)) }
        assertEquals(Reason.TOO_LARGE, error.reason)
        assertEquals(4_096, decoder.decode(OddPhotos.bmp(4_096, 4_096)).use { it.height })
    }

    @Test
    fun `a photo of too many pixels is left out before its content is looked through`() {
        val photo = OddPhotos.png(20_000, 10_000)
        val error = assertThrows(PhotoException::class.java) { BitmapDecoder().decode(photo.copyOf(photo.size - 1)) }
        assertEquals(error.message, Reason.TOO_LARGE, error.reason)
    }
}

/**
 * The contract of every platform's decoder.
 *
 * @param refused Endings of the names of photos of [PhonePhotos] that this decoder refuses.
 * @param nearly As in [PhotoVectors].
 */
abstract class PhotoDecoderContract(
    private val decoder: PhotoDecoder,
    private val refused: Set<String> = emptySet(),
    private val nearly: Set<String> = emptySet(),
) {
    private val index = Vectors.json("photos/photos.json")

    @Test
    fun `every photo of the vectors becomes the expected numbers`() = PhotoVectors(decoder, nearly).check()

    @Test
    fun `every file of the vectors that must be left out is left out`() {
        assertEquals(5, index.getAsJsonArray("refused").size())
        for (name in index.getAsJsonArray("refused")) {
            assertThrows(name.asString, PhotoException::class.java) {
                prepare(Vectors.bytes("photos/refused/${name.asString}"), 8, 8)
            }
        }
    }

    @Test
    fun `a photo that is cut short anywhere is left out`() {
        for (name in WHOLE) {
            val whole = Vectors.bytes("photos/$name")
            for (length in whole.size / 20 until whole.size - 2 step whole.size / 19) {
                val cut = whole.copyOf(length)
                val error = assertThrows("$name, $length bytes", PhotoException::class.java) { prepare(cut, 8, 8) }
                assertTrue(error.message, error.reason != PhotoException.Reason.TOO_LARGE)
            }
        }
    }

    @Test
    fun `a photo with flipped bits is left out or becomes a photo`() {
        val random = Random(20_261_122)
        for (name in WHOLE) {
            repeat(40) {
                val damaged = Vectors.bytes("photos/$name")
                val at = random.nextInt(damaged.size)
                damaged[at] = (damaged[at].toInt() xor (1 shl random.nextInt(8))).toByte()
                orNamedError { assertEquals(3 * 8 * 8, prepare(damaged, 8, 8).size) }
            }
        }
    }

    @Test
    fun `a colour profile changes nothing`() {
        for (name in listOf("colour.jpg", "same-size.png", "lossless.webp")) {
            val plain = Vectors.bytes("photos/$name")
            val tagged = ColourProfiles.addTo(plain)
            assertTrue(name, tagged.size > plain.size)
            assertArrayEquals(name, prepare(plain, 8, 8), prepare(tagged, 8, 8))
        }
    }

    @Test
    fun `what a photo has beside its pixels may be odd`() {
        for ((name, odd) in mapOf("colour.jpg" to OddPhotos::jpegs, "same-size.png" to OddPhotos::pngs)) {
            val plain = Vectors.bytes("photos/$name")
            for ((what, photo) in odd(plain)) {
                assertArrayEquals("$name, $what", prepare(plain, 8, 8), prepare(photo, 8, 8))
            }
        }
    }

    @Test
    fun `fifty photos differ by less than half of 255 on average from what Python makes of them`() {
        val photos = PhonePhotos.photos()
        assumeTrue(PhonePhotos.missing, photos.isNotEmpty())
        var sum = 0.0
        var count = 0L
        var largest = 0
        val (left, taken) = photos.partition { photo -> refused.any(photo.name::endsWith) }
        for (photo in left) {
            assertThrows(photo.name, PhotoException::class.java) { prepare(photo.content, photo.height, photo.width) }
        }
        for (photo in taken) {
            val found = prepare(photo.content, photo.height, photo.width)
            photo.leave(found, javaClass.simpleName)
            val wanted = photo.expected
            assertEquals(wanted.size, found.size)
            val differences = wanted.indices.map { abs((wanted[it].toInt() and 0xff) - (found[it].toInt() and 0xff)) }
            val mean = differences.average()
            if (differences.max() > largest) largest = differences.max()
            assertTrue("${photo.name}: $mean of 255", mean < 0.5)
            sum += differences.sum()
            count += differences.size
        }
        val number = taken.map { it.name }.distinct().size
        println(
            "${javaClass.simpleName}: $number photos in 3 sizes, mean ${sum / count} of 255, largest $largest of 255",
        )
    }

    protected fun prepare(
        content: ByteArray,
        height: Int,
        width: Int,
    ): ByteArray = prepared(decoder, content, height, width)

    private companion object {
        val WHOLE =
            listOf("colour.jpg", "progressive.jpg", "down-odd.png", "palette.png", "lossless.webp", "picture.bmp")
    }
}
