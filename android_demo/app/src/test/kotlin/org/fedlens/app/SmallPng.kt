package org.fedlens.app

import android.graphics.Bitmap
import java.awt.image.BufferedImage
import java.awt.image.IndexColorModel
import java.io.File
import javax.imageio.IIOImage
import javax.imageio.ImageIO
import javax.imageio.ImageWriteParam

/** Writes pictures of screens with the 64 colours that occur most: a quarter of the bytes, and no difference to be seen. */
internal object SmallPng {
    private const val COLOURS = 64
    private const val MASK = 0xFF
    private const val BITS = 8

    fun write(
        picture: Bitmap,
        file: File,
    ) {
        val pixels = IntArray(picture.width * picture.height)
        picture.getPixels(pixels, 0, picture.width, 0, 0, picture.width, picture.height)
        val palette = palette(pixels)
        val model = IndexColorModel(BITS, palette.size, palette, 0, false, -1, java.awt.image.DataBuffer.TYPE_BYTE)
        val image = BufferedImage(picture.width, picture.height, BufferedImage.TYPE_BYTE_INDEXED, model)
        val places = HashMap<Int, Byte>()
        val indexed = ByteArray(pixels.size) { at -> places.getOrPut(pixels[at]) { nearest(palette, pixels[at]) } }
        image.raster.setDataElements(0, 0, picture.width, picture.height, indexed)
        val writer = ImageIO.getImageWritersByFormatName("png").next()
        val tight = writer.defaultWriteParam
        tight.compressionMode = ImageWriteParam.MODE_EXPLICIT
        tight.compressionQuality = 0f
        file.delete()
        ImageIO.createImageOutputStream(file).use {
            writer.output = it
            writer.write(null, IIOImage(image, null, null), tight)
        }
        writer.dispose()
    }

    private fun palette(pixels: IntArray): IntArray {
        val counts = HashMap<Int, Int>()
        pixels.forEach { counts.merge(it, 1, Int::plus) }
        return counts.entries
            .sortedWith(compareBy({ -it.value }, { it.key }))
            .take(COLOURS)
            .map { it.key }
            .toIntArray()
    }

    private fun nearest(
        palette: IntArray,
        colour: Int,
    ): Byte = palette.indices.minBy { distance(palette[it], colour) }.toByte()

    private fun distance(
        one: Int,
        other: Int,
    ): Int =
        (0 until Int.SIZE_BITS - BITS step BITS).sumOf { shift ->
            val apart = (one shr shift and MASK) - (other shr shift and MASK)
            apart * apart
        }
}
