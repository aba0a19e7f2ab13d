package org.fedlens.jvm

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.photo.PhotoFile
import org.fedlens.sdk.photo.PhotoFormat
import org.fedlens.sdk.photo.Photos
import org.fedlens.sdk.photo.PixelSource
import org.fedlens.sdk.photo.PlainPhoto
import java.awt.color.ColorSpace
import java.awt.image.BufferedImage
import java.io.IOException
import java.nio.ByteBuffer
import java.nio.ByteOrder
import javax.imageio.ImageIO
import javax.imageio.ImageReader
import javax.imageio.event.IIOReadWarningListener
import javax.imageio.stream.MemoryCacheImageInputStream

/**
 * A decoder on the JDK's ImageIO, with TwelveMonkeys for lossless WebP; it decodes whole photos into the heap. It
 * refuses JPEG in CMYK and lossy WebP, for which these libraries give other pixels than preprocessing allows, and
 * photos that do not fit into the heap. The largest photo takes 540 MB, and more with an alpha channel or 16 bits per
 * colour.
 */
public class ImageIoDecoder : PhotoDecoder {
    override fun decode(content: ByteArray): PixelSource {
        val plain = PlainPhoto.of(content)
        val format = PhotoFile.read(ByteBuffer.wrap(plain)).format
        if (format == PhotoFormat.WEBP && isLossy(plain)) {
            throw PhotoException(
                Reason.UNKNOWN_FORMAT,
                "lossy WebP, which cannot be used here; export it as JPEG or PNG",
            )
        }
        val reader = ImageIO.getImageReadersByFormatName(format.name).next()
        try {
            return read(reader, plain)
        } catch (error: IOException) {
            throw meaning(error, error.message)
        } catch (error: RuntimeException) {
            // Readers throw exceptions of many kinds for damaged files.
            throw meaning(error, "$error")
        } catch (error: OutOfMemoryError) {
            throw meaning(error, "$error")
        } finally {
            reader.dispose()
        }
    }

    private fun meaning(
        error: Throwable,
        why: String?,
    ): PhotoException =
        // Some readers wrap it in another exception.
        if (generateSequence(error) { it.cause }.any { it is OutOfMemoryError }) {
            PhotoException(Reason.TOO_LARGE, "takes more memory than the JVM may have (-Xmx)", error)
        } else {
            PhotoException(Reason.DAMAGED, "cannot be decoded: $why", error)
        }

    /**
     * True if a WebP file has a chunk of lossy pixels, which may follow other chunks. The reader's metadata do not
     * tell: they call every file with a VP8X header lossy.
     */
    private fun isLossy(content: ByteArray): Boolean {
        val file = ByteBuffer.wrap(content).order(ByteOrder.LITTLE_ENDIAN)
        var at = RIFF_BYTES
        while (at + CHUNK_BYTES <= content.size) {
            val name = String(content, at.toInt(), NAME_BYTES, Charsets.ISO_8859_1)
            if (name == "VP8 ") return true
            val length = Integer.toUnsignedLong(file.getInt(at.toInt() + NAME_BYTES))
            at += CHUNK_BYTES + length + (length and 1)
        }
        return false
    }

    private fun read(
        reader: ImageReader,
        content: ByteArray,
    ): PixelSource =
        // ImageIO's own stream would copy the photo into a file.
        MemoryCacheImageInputStream(content.inputStream()).use { stream ->
            var damage: String? = null
            reader.addIIOReadWarningListener(
                object : IIOReadWarningListener {
                    override fun warningOccurred(
                        source: ImageReader,
                        text: String,
                    ) {
                        if (LOSS.containsMatchIn(text)) damage = text
                    }
                },
            )
            // Metadata are ignored, because they may be damaged.
            reader.setInput(stream, false, true)
            val (width, height) = reader.getWidth(0) to reader.getHeight(0)
            if (width.toLong() * height > Photos.MAX_PIXELS) {
                val message = "a photo of $width x $height pixels; at most ${Photos.MAX_PIXELS} are allowed"
                throw PhotoException(Reason.TOO_LARGE, message)
            }
            val image = reader.read(0)
            damage?.let { throw IOException(it) }
            if (image.colorModel.colorSpace.type == ColorSpace.TYPE_GRAY) GreyImage(image) else ColourImage(image)
        }

    private companion object {
        const val RIFF_BYTES = 12L
        const val CHUNK_BYTES = 8
        const val NAME_BYTES = 4

        /** Warnings about missing pixels that the reader invented; other warnings are harmless. */
        val LOSS =
            Regex(
                "^Corrupt JPEG data: (?!\\d+ extraneous bytes)|^Premature end|^Truncated File|" +
                    "^Inconsistent progression|^Nothing to decode",
            )
    }
}

private class ColourImage(
    private val image: BufferedImage,
) : PixelSource {
    override val width: Int = image.width
    override val height: Int = image.height

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) {
        image.getRGB(x, y, width, height, into, 0, width)
    }
}

/** The JDK's own conversion of grey to RGB changes its brightness. */
private class GreyImage(
    private val image: BufferedImage,
) : PixelSource {
    override val width: Int = image.width
    override val height: Int = image.height
    private val is16Bit = image.raster.sampleModel.getSampleSize(0) == 16

    override fun read(
        x: Int,
        y: Int,
        width: Int,
        height: Int,
        into: IntArray,
    ) {
        image.raster.getSamples(x, y, width, height, 0, into)
        for (i in 0 until width * height) into[i] = (if (is16Bit) into[i] / 257 else into[i]) * 0x010101
    }
}
