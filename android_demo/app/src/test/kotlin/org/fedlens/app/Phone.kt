package org.fedlens.app

import android.app.Activity
import android.content.Intent
import android.graphics.Bitmap
import android.graphics.Canvas
import android.net.Uri
import android.os.Looper
import android.view.View
import android.widget.EditText
import android.widget.TextView
import kotlinx.coroutines.launch
import org.junit.Assert.assertTrue
import org.robolectric.Robolectric
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.android.controller.ActivityController
import org.robolectric.shadows.ShadowPausedLooper
import java.io.File

/** The user of a phone: touching and looking. */
internal object Phone {
    private const val LONGEST_MS = 30_000L
    private const val PATIENCE_MS = 20L
    private const val NANOS_PER_MS = 1_000_000L

    val app: TestApp get() = RuntimeEnvironment.getApplication() as TestApp

    /** Opens a screen and looks at it. */
    inline fun <reified A : Activity> open(intent: Intent? = null): ActivityController<A> =
        Robolectric.buildActivity(A::class.java, intent).setup().visible().also { idle() }

    /** Run the pending work of the main thread. */
    fun idle() {
        shadowOf(Looper.getMainLooper()).idle()
        app.jobs.turn()
    }

    /** Run the main thread until a condition holds. */
    fun until(
        what: String,
        condition: () -> Boolean,
    ) {
        val end = System.nanoTime() + LONGEST_MS * NANOS_PER_MS
        val looper = shadowOf(Looper.getMainLooper()) as ShadowPausedLooper
        while (true) {
            looper.idle()
            app.jobs.turn()
            if (condition()) return
            check(System.nanoTime() < end) { "still not so after $LONGEST_MS ms: $what" }
            // Returns as soon as there is something to do.
            looper.poll(PATIENCE_MS)
        }
    }

    /** Run the main thread for a while, to see that something does not happen. */
    fun spend(ms: Long) {
        val end = System.nanoTime() + ms * NANOS_PER_MS
        until("$ms ms are over") { System.nanoTime() >= end }
    }

    fun Activity.view(id: Int): View = findViewById(id)

    fun Activity.text(id: Int): String = findViewById<TextView>(id).text.toString()

    fun Activity.isShown(id: Int): Boolean = findViewById<View>(id)?.isShown == true

    fun Activity.press(id: Int) {
        assertTrue("${resources.getResourceEntryName(id)} is to be pressed and is not shown", isShown(id))
        view(id).performClick()
        idle()
    }

    fun Activity.type(
        id: Int,
        text: String,
    ) {
        findViewById<EditText>(id).setText(text)
        idle()
    }

    /** The screen that the last one led to. */
    fun Activity.next(): Class<*>? = shadowOf(this).nextStartedActivity?.component?.className?.let { Class.forName(it) }

    /** Answer the picker that the screen has opened with these files. */
    fun ActivityController<CollectActivity>.pick(addresses: List<Uri>) {
        val screen = get()
        screen.press(R.id.pick_photos)
        val asked = shadowOf(screen).nextStartedActivityForResult
        val data = Intent()
        data.clipData =
            android.content.ClipData
                .newRawUri("photos", addresses.first())
                .apply { addresses.drop(1).forEach { addItem(android.content.ClipData.Item(it)) } }
        shadowOf(screen).receiveResult(asked.intent, Activity.RESULT_OK, data)
        idle()
    }

    /** The phone has joined [server] already, without a screen; [more] ends the link. */
    fun join(
        server: PlayedServer,
        more: String = "",
    ) {
        val link = EnrolmentLink.read(server.link + more) as EnrolmentLink.Reading.Good
        app.settings.hasConsent = true
        app.settings.tellsClassCounts = true
        app.settings.tellsEvaluation = true
        app.joining.join(link.link)
        until("joined") { app.settings.isEnrolled && app.joining.state.value == Joining.State.Joined }
        app.joining.seen()
    }

    /** Adds a labelled photo, without a screen. */
    fun addPhoto(
        animal: String,
        number: Int,
        isTest: Boolean = false,
        label: String? = animal,
    ) {
        var isThere = false
        app.scope.launch {
            val added = app.photos.add(listOf(Drawn.address(animal, number, isTest)))
            if (label != null) app.photos.label(added.added.single(), label)
            isThere = true
        }
        until("the photo is in the album") { isThere }
    }

    /** The content of the window as a picture. */
    fun picture(activity: Activity): Bitmap {
        idle()
        val decor = activity.window.decorView
        return Bitmap.createBitmap(decor.width, decor.height, Bitmap.Config.ARGB_8888).also { decor.draw(Canvas(it)) }
    }

    /** Write a picture of the window to `target/screens`, and to the docs' pictures on request. */
    fun photograph(
        activity: Activity,
        name: String,
    ) {
        val picture = picture(activity)
        val kept = System.getProperty("screens.kept").orEmpty()
        for (folder in listOf("target/screens", kept).filter { it.isNotEmpty() }) {
            val file = File(folder, "$name.png").apply { parentFile?.mkdirs() }
            SmallPng.write(picture, file)
        }
        val pixels = IntArray(picture.width * picture.height)
        picture.getPixels(pixels, 0, picture.width, 0, 0, picture.width, picture.height)
        assertTrue("$name shows next to nothing", pixels.toSet().size > LEAST_COLOURS)
    }

    private const val LEAST_COLOURS = 20
}
