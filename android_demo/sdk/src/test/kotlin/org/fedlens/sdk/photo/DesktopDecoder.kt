package org.fedlens.sdk.photo

import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.PhotoException.Reason
import java.awt.color.ColorSpace
import java.awt.image.BufferedImage
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer
import javax.imageio.ImageIO
import javax.imageio.ImageReader
import javax.imageio.event.IIOReadWarningListener

/** Decodes photos with the JDK, as a desktop client would. */
object DesktopDecoder {
    /** A photo's input of a program: uint8 [3, height, width]. */
    fun prepare(
        file: File,
        height: Int,
        width: Int,
    ): ByteArray {
        val raw = file.readBytes()
        val photo = PhotoFile.read(ByteBuffer.wrap(raw))
        return Photos.prepare(decode(raw, photo.format), photo.orientation, height, width)
    }

    private fun decode(
        raw: ByteArray,
        format: PhotoFormat,
    ): PixelSource {
        val reader = ImageIO.getImageReadersByFormatName(format.name).next()
        try {
            ImageIO.createImageInputStream(raw.inputStream()).use { stream ->
                // The JDK warns of a JPEG that is cut short, and fills what is missing.
                var warning: String? = null
                reader.addIIOReadWarningListener(
                    object : IIOReadWarningListener {
                        override fun warningOccurred(
                            source: ImageReader,
                            text: String,
                        ) {
                            warning = text
                        }
                    },
                )
                reader.input = stream
                val image = reader.read(0)
                warning?.let { throw PhotoException(Reason.DAMAGED, it) }
                return if (image.colorModel.colorSpace.type == ColorSpace.TYPE_GRAY) grey(image) else colour(image)
            }
        } catch (error: IOException) {
            throw PhotoException(Reason.DAMAGED, "cannot be decoded", error)
        } finally {
            reader.dispose()
        }
    }

    private fun colour(image: BufferedImage): PixelSource =
        PixelSource.of(image.width, image.height, image.getRGB(0, 0, image.width, image.height, null, 0, image.width))

    /** The JDK's own conversion of grey to RGB changes its brightness. */
    private fun grey(image: BufferedImage): PixelSource {
        val samples = image.raster.getSamples(0, 0, image.width, image.height, 0, null as IntArray?)
        val is16Bit = image.raster.sampleModel.getSampleSize(0) == 16
        val pixels = samples.map { (if (is16Bit) it / 257 else it) * 0x010101 }.toIntArray()
        return PixelSource.of(image.width, image.height, pixels)
    }
}
