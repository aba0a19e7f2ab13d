package org.fedlens.app

import android.graphics.Bitmap
import android.graphics.Canvas
import android.graphics.Color
import android.graphics.Paint
import android.graphics.Path
import android.net.Uri
import java.io.ByteArrayOutputStream
import java.io.File
import java.security.MessageDigest
import kotlin.random.Random

/** Photos that were never taken: an animal on a meadow, another one for each number. */
internal object Drawn {
    /** A PNG file of a train photo or a test photo. */
    fun photo(
        animal: String,
        number: Int,
        isTest: Boolean = false,
    ): ByteArray =
        generateSequence(number * VARIANTS) { it + 1 }
            .map { png(animal, it) }
            .first { isTest(it) == isTest }

    /** The same as a file that a user could pick. */
    fun address(
        animal: String,
        number: Int,
        isTest: Boolean = false,
    ): Uri {
        val file = File.createTempFile("drawn", ".png").apply { deleteOnExit() }
        file.writeBytes(photo(animal, number, isTest))
        return Uri.fromFile(file)
    }

    private fun isTest(content: ByteArray): Boolean {
        val digest = MessageDigest.getInstance("SHA-256").digest(content)
        val first =
            digest.take(Long.SIZE_BYTES).fold(0UL) { sum, byte ->
                sum shl Byte.SIZE_BITS or
                    byte.toUByte().toULong()
            }
        return first % ONE_IN == 0UL
    }

    private fun png(
        animal: String,
        seed: Int,
    ): ByteArray {
        val bitmap = Bitmap.createBitmap(WIDTH, HEIGHT, Bitmap.Config.ARGB_8888)
        val canvas = Canvas(bitmap)
        val random = Random(seed)
        val paint = Paint(Paint.ANTI_ALIAS_FLAG)
        // Brighter or darker, and of a light that is warm or cold: so that animals can be taken for each other.
        val light = random.nextInt(-24, 24)
        val shift = IntArray(RGB) { light + random.nextInt(-20, 20) }
        canvas.drawColor(tint(SKIES.getValue(animal), shift))
        paint.color = tint(MEADOWS.getValue(animal), shift)
        canvas.drawRect(0f, HEIGHT * 0.66f, WIDTH.toFloat(), HEIGHT.toFloat(), paint)
        canvas.translate(WIDTH * random.nextDouble(0.4, 0.6).toFloat(), HEIGHT * 0.56f)
        val size = random.nextDouble(0.85, 1.15).toFloat()
        canvas.scale(if (random.nextBoolean()) size else -size, size)
        paint.color = tint(COATS.getValue(animal), shift)
        when (animal) {
            "cat" -> cat(canvas, paint)
            "dog" -> dog(canvas, paint)
            else -> emu(canvas, paint)
        }
        return ByteArrayOutputStream().also { bitmap.compress(Bitmap.CompressFormat.PNG, 100, it) }.toByteArray()
    }

    private fun cat(
        canvas: Canvas,
        paint: Paint,
    ) {
        canvas.drawOval(-70f, 0f, 70f, 110f, paint)
        canvas.drawCircle(0f, -40f, 52f, paint)
        ear(canvas, paint, -48f)
        ear(canvas, paint, 48f)
        eyes(canvas, 20f, -46f)
    }

    private fun ear(
        canvas: Canvas,
        paint: Paint,
        x: Float,
    ) {
        val ear = Path()
        ear.moveTo(x, -110f)
        ear.lineTo(x * 0.15f, -80f)
        ear.lineTo(x, -40f)
        ear.close()
        canvas.drawPath(ear, paint)
    }

    private fun dog(
        canvas: Canvas,
        paint: Paint,
    ) {
        canvas.drawOval(-80f, 0f, 80f, 110f, paint)
        canvas.drawCircle(0f, -40f, 54f, paint)
        canvas.drawOval(-78f, -80f, -38f, 10f, paint)
        canvas.drawOval(38f, -80f, 78f, 10f, paint)
        eyes(canvas, 20f, -50f)
        canvas.drawOval(-14f, -30f, 14f, -10f, Paint(Paint.ANTI_ALIAS_FLAG).apply { color = Color.BLACK })
    }

    private fun emu(
        canvas: Canvas,
        paint: Paint,
    ) {
        canvas.drawOval(-80f, -10f, 60f, 70f, paint)
        canvas.drawRect(30f, -110f, 48f, 20f, paint)
        canvas.drawOval(22f, -130f, 74f, -96f, paint)
        canvas.drawRect(-30f, 60f, -20f, 120f, paint)
        canvas.drawRect(10f, 60f, 20f, 120f, paint)
        eyes(canvas, 0f, -114f, 50f)
    }

    private fun eyes(
        canvas: Canvas,
        apart: Float,
        y: Float,
        middle: Float = 0f,
    ) {
        val white = Paint(Paint.ANTI_ALIAS_FLAG).apply { color = Color.WHITE }
        val black = Paint(Paint.ANTI_ALIAS_FLAG).apply { color = Color.BLACK }
        for (x in setOf(middle - apart, middle + apart)) {
            canvas.drawCircle(x, y, 9f, white)
            canvas.drawCircle(x, y, 5f, black)
        }
    }

    private fun tint(
        colour: Int,
        shift: IntArray,
    ) = Color.rgb(
        (Color.red(colour) + shift[0]).coerceIn(0, MOST),
        (Color.green(colour) + shift[1]).coerceIn(0, MOST),
        (Color.blue(colour) + shift[2]).coerceIn(0, MOST),
    )

    private val SKIES = mapOf("cat" to 0xF6D9B8, "dog" to 0xBFE0F5, "emu" to 0xF3E3A1)
    private val MEADOWS = mapOf("cat" to 0xA9784F, "dog" to 0x7FB069, "emu" to 0xC9A24B)
    private val COATS = mapOf("cat" to 0xD97B29, "dog" to 0x6B4A32, "emu" to 0x4A4E57)
    private const val WIDTH = 320
    private const val HEIGHT = 300
    private const val VARIANTS = 1000
    private const val RGB = 3
    private const val MOST = 255
    private const val ONE_IN = 5UL
}
