package org.fedlens.app

import android.content.Intent
import android.content.res.Configuration
import android.database.sqlite.SQLiteDatabase
import android.graphics.Bitmap
import android.graphics.Canvas
import android.graphics.Color
import android.provider.MediaStore
import android.view.View
import android.view.ViewGroup
import android.widget.Button
import android.widget.ListView
import android.widget.TextView
import com.google.zxing.BarcodeFormat
import com.google.zxing.qrcode.QRCodeWriter
import kotlinx.coroutines.launch
import okhttp3.tls.HeldCertificate
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.next
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.pick
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.fedlens.app.Phone.view
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode
import java.io.ByteArrayOutputStream
import java.io.File
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit
import kotlin.concurrent.thread

/** From consent to *What left this phone*, with the SDK's client and a server that plays the protocol. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class StoryTest {
    private val app get() = Phone.app

    @Test
    fun `from consent to what left this phone`() {
        PlayedServer().use { server ->
            assertEquals(EnrolActivity::class.java, open<CollectActivity>().get().next())
            val enrol = open<EnrolActivity>().get()
            enrol.type(R.id.link, server.link + "&operator=Zoo&purpose=Knowing%20animals")
            assertTrue(enrol.text(R.id.link_server).contains("http://127.0.0.1"))
            enrol.press(R.id.join)

            // Who and why comes with the question, and each answer is off.
            val consent = open<ConsentActivity>(shadowOf(enrol).nextStartedActivity).get()
            assertEquals(app.getString(R.string.link_operator, "Zoo"), consent.text(R.id.link_operator))
            assertEquals(app.getString(R.string.link_purpose, "Knowing animals"), consent.text(R.id.link_purpose))
            val answers = listOf(R.id.class_counts, R.id.evaluation)
            assertTrue(answers.none { consent.findViewById<SettingRow>(it).isOn })
            assertFalse(app.settings.hasConsent || app.clientFolder.exists())
            assertEquals(emptyList<String>(), server.requests)
            answers.forEach { consent.press(it) }
            consent.press(R.id.agree)
            assertEquals(EnrolActivity::class.java, consent.next())
            until("joined") { enrol.isFinishing }
            assertEquals(listOf("cat", "dog", "emu"), app.settings.classNames)

            val home = open<CollectActivity>()
            val screen = home.get()
            assertEquals(app.getString(R.string.no_photos_title), screen.text(R.id.status_title))
            home.pick(listOf(Drawn.address("dog", 1)))
            until("a suggestion") { screen.isShown(R.id.confirm) }
            val suggested = screen.findViewById<Button>(R.id.confirm).text.toString()
            assertTrue(suggested, app.settings.classNames.any { suggested == app.getString(R.string.confirm, it) })

            screen.press(R.id.confirm)
            until("labelled") { !screen.isShown(R.id.to_label) }
            assertEquals(app.getString(R.string.ready_title), screen.text(R.id.status_title))
            screen.press(R.id.learn_now)
            until("reported") { screen.text(R.id.status_title) == app.getString(R.string.reported_title, 1) }
            // The next suggestion is the new model's.
            assertEquals("POST /v1/check-in", server.requests.last())

            val sent = open<SentActivity>().get()
            until("what was sent") { sent.findViewById<ListView>(R.id.uploads).adapter.count > 3 }
            val texts = texts(sent.findViewById(R.id.uploads))
            assertTrue("$texts", texts.any { it.startsWith(app.getString(R.string.sent_result)) })
            assertTrue("$texts", texts.contains(app.resources.getQuantityString(R.plurals.answer_photos, 1, 1)))
            assertTrue("$texts", texts.contains(app.resources.getStringArray(R.array.what_never_leaves)[0]))
            assertTrue("$texts", texts.none { "classifier" in it })

            val details = open<DetailsActivity>(DetailsActivity.intent(app, newest())).get()
            until("details") { details.isShown(R.id.upload_round) }
            assertEquals(app.getString(R.string.details_round, PlayedServer.TASK, 1), details.text(R.id.upload_round))
            val lines = texts(details.findViewById(R.id.upload_tensors))
            assertTrue("$lines", lines.any { it.startsWith("classifier.weight: 3 × 6") })
        }
    }

    @Test
    fun `of a long log the newest messages are shown, and how many there are`() {
        PlayedServer().use { server ->
            Phone.join(server)
            SQLiteDatabase.openDatabase(File(app.clientFolder, "client.sqlite3").path, null, 0).use {
                it.execSQL(
                    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300) " +
                        "INSERT INTO journal (kind, outcome, time_ms, task, round, bytes, message, tensors) " +
                        "SELECT 'upload', 'DELIVERED', i, 1, i, 1000, x'', x'' FROM n",
                )
            }
            val sent = open<SentActivity>().get()
            until("what was sent") { sent.findViewById<ListView>(R.id.uploads).adapter.count > 200 }
            // With the enrolment.
            assertEquals(app.getString(R.string.sent_text_newest, 200, 301), sent.text(R.id.total_text))
            val total = app.resources.getQuantityString(R.plurals.sent_total, 300, 300, "300 kB")
            assertEquals(total, sent.text(R.id.total))
        }
    }

    private fun newest() = checkNotNull(app.learning.journal.value).first()

    @Test
    fun `a server that was not consented to is asked about again`() {
        PlayedServer().use { server ->
            app.settings.hasConsent = true
            app.settings.consentedTo = "https://another.example.org"
            val enrol = open<EnrolActivity>().get()
            enrol.type(R.id.link, server.link)
            assertEquals(app.getString(R.string.read_on), enrol.text(R.id.join))
            enrol.press(R.id.join)
            assertEquals(ConsentActivity::class.java, enrol.next())
            assertEquals(Joining.State.Idle, app.joining.state.value)
        }
    }

    @Test
    fun `a QR code is read in the camera's picture, and a picture without one is explained`() {
        val enrol = open<EnrolActivity>().get()
        val link = "https://fl.example.org/join#token=" + "t".repeat(300)
        photograph(enrol, Drawn.photo("cat", 1))
        until("explained") { enrol.text(R.id.link_problem) == app.getString(R.string.scan_nothing) }
        photograph(enrol, qrCode(link))
        until("read") { enrol.text(R.id.link) == link }
        assertFalse(CaptureProvider.file(app).exists())
        assertTrue(enrol.findViewById<Button>(R.id.join).isEnabled)
    }

    private fun photograph(
        screen: EnrolActivity,
        picture: ByteArray,
    ) {
        screen.press(R.id.scan)
        val asked = shadowOf(screen).nextStartedActivityForResult
        assertEquals(MediaStore.ACTION_IMAGE_CAPTURE, asked.intent.action)
        write(picture)
        shadowOf(screen).receiveResult(asked.intent, android.app.Activity.RESULT_OK, null)
    }

    /** What the camera app does, in a process and so a thread of its own. */
    private fun write(picture: ByteArray) =
        thread {
            checkNotNull(app.contentResolver.openOutputStream(CaptureProvider.ADDRESS, "w")).use { it.write(picture) }
        }.join()

    /** A photo of a QR code: askew on a grey ground, as JPEG, larger than what is decoded at once. */
    private fun qrCode(text: String): ByteArray {
        val code = QRCodeWriter().encode(text, BarcodeFormat.QR_CODE, CODE_PX, CODE_PX)
        val pixels = IntArray(CODE_PX * CODE_PX) { if (code[it % CODE_PX, it / CODE_PX]) Color.BLACK else Color.WHITE }
        val photo = Bitmap.createBitmap(PHOTO_WIDTH, PHOTO_HEIGHT, Bitmap.Config.ARGB_8888)
        val canvas = Canvas(photo)
        canvas.drawColor(Color.GRAY)
        canvas.rotate(ASKEW_DEGREES, PHOTO_WIDTH / 2f, PHOTO_HEIGHT / 2f)
        val drawn = Bitmap.createBitmap(pixels, CODE_PX, CODE_PX, Bitmap.Config.ARGB_8888)
        canvas.drawBitmap(drawn, (PHOTO_WIDTH - CODE_PX) / 2f, (PHOTO_HEIGHT - CODE_PX) / 2f, null)
        return ByteArrayOutputStream().also { photo.compress(Bitmap.CompressFormat.JPEG, 90, it) }.toByteArray()
    }

    @Test
    fun `labels are shown in the language of the phone, and stay what they are`() {
        PlayedServer(displayNames = mapOf("de" to listOf("Katze", "Hund", "Emu"))).use { server ->
            RuntimeEnvironment.setQualifiers("+de")
            Phone.join(server)
            Phone.addPhoto("cat", 1)
            val photo = checkNotNull(app.photos.all.value).single()
            val screen = open<PhotoActivity>(PhotoActivity.intent(app, photo.id)).get()
            until("labels") { screen.findViewById<ViewGroup>(R.id.classes).childCount == 3 }
            val shown = texts(screen.findViewById(R.id.classes)).filter { it.all(Char::isLetter) && it.isNotEmpty() }
            assertEquals(listOf("Katze", "Hund", "Emu"), shown)
            screen.findViewById<ViewGroup>(R.id.classes).getChildAt(1).performClick()
            until("labelled") { app.photos.all.value?.single()?.label == "dog" }

            // Another language, of which the bundle has no names.
            RuntimeEnvironment.setQualifiers("+en")
            app.scope.launch { app.learning.findModel() }
            until("as they are") { app.settings.knowsDisplayNames }
            assertEquals("cat", app.settings.shown("cat"))
        }
    }

    @Test
    fun `a photo from the camera is in the album and nowhere else`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val screen = open<CollectActivity>().get()
            screen.press(R.id.take_photo)
            val asked = shadowOf(screen).nextStartedActivityForResult
            assertEquals(MediaStore.ACTION_IMAGE_CAPTURE, asked.intent.action)
            write(Drawn.photo("cat", 1))
            shadowOf(screen).receiveResult(asked.intent, android.app.Activity.RESULT_OK, null)
            until("in the album") { app.photos.all.value?.size == 1 && !CaptureProvider.file(app).exists() }

            // Another class than the model's: the row of emu.
            screen.press(R.id.choose_class)
            val photo = open<PhotoActivity>(shadowOf(screen).nextStartedActivity).get()
            until("classes") { photo.findViewById<ViewGroup>(R.id.classes).childCount == 3 }
            photo.findViewById<ViewGroup>(R.id.classes).getChildAt(2).performClick()
            until("labelled") { app.photos.all.value?.single()?.label == "emu" }
            assertTrue(photo.isFinishing)
        }
    }

    @Test
    fun `files that are no photos are named by reason`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val home = open<CollectActivity>()
            val heic =
                java.io.File
                    .createTempFile(
                        "file",
                        ".heic",
                    ).apply { writeBytes("0000ftypheic0000".toByteArray()) }
            val text = java.io.File.createTempFile("file", ".txt").apply { writeText("no photo") }
            home.pick(listOf(android.net.Uri.fromFile(heic), android.net.Uri.fromFile(text)))
            val format = app.resources.getQuantityString(R.plurals.refused_format, 1, 1)
            // One after the other.
            until("explained") { home.get().text(R.id.problem).contains(format) }
            val said = home.get().text(R.id.problem)
            assertTrue(said, said.contains(app.resources.getQuantityString(R.plurals.refused_heic, 1, 1)))
            assertTrue(said, home.get().isShown(R.id.problem))
            assertEquals(0, app.photos.all.value?.size)
        }
    }

    @Test
    fun `adding shows photo by photo, and says after a rotation what it refused`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val gate = CountDownLatch(1)
            val slow = android.net.Uri.parse("content://slow/1")
            shadowOf(app.contentResolver).registerInputStreamSupplier(slow) {
                gate.await(1, TimeUnit.MINUTES)
                "no photo".byteInputStream()
            }
            val home = open<CollectActivity>()
            home.pick(listOf(Drawn.address("cat", 1), slow))
            val said = app.resources.getQuantityString(R.plurals.adding, 1, 1)
            until("the first is there") { app.photos.all.value?.size == 1 && home.get().text(R.id.add_text) == said }
            assertFalse(home.get().view(R.id.take_photo).isEnabled)
            RuntimeEnvironment.setQualifiers("+land")
            home.configurationChange(Configuration(app.resources.configuration)).visible()
            gate.countDown()
            until("explained") { home.get().isShown(R.id.problem) }
            assertEquals(
                app.resources.getQuantityString(R.plurals.refused_format, 1, 1),
                home.get().text(R.id.problem),
            )
            assertEquals(app.getString(R.string.add_photos_text), home.get().text(R.id.add_text))
            assertTrue(home.get().view(R.id.take_photo).isEnabled)
        }
    }

    @Test
    fun `an invitation from elsewhere waits for consent and joins nothing by itself`() {
        PlayedServer().use { server ->
            val invitation = Intent(Intent.ACTION_VIEW, android.net.Uri.parse(server.link))
            val enrol = open<EnrolActivity>(invitation).get()
            assertEquals(server.link, enrol.text(R.id.link))
            assertNull(enrol.next())
            enrol.press(R.id.join)
            val asked = shadowOf(enrol).nextStartedActivity
            assertEquals(ConsentActivity::class.java.name, asked.component?.className)
            open<ConsentActivity>(asked).get().press(R.id.not_now)
            assertFalse(app.settings.hasConsent)
            assertEquals(emptyList<String>(), server.requests)
        }
    }

    @Test
    fun `a server whose authority only the link names is joined, also after the process has ended`() {
        val authority = HeldCertificate.Builder().certificateAuthority(0).build()
        PlayedServer(authority = authority).use { server ->
            app.settings.hasConsent = true
            val enrol = open<EnrolActivity>().get()
            enrol.type(R.id.link, server.link.substringBefore("&ca="))
            enrol.press(R.id.join)
            until("distrusted") { enrol.isShown(R.id.join) && enrol.isShown(R.id.joining) }
            assertEquals(app.getString(R.string.untrusted_title), enrol.text(R.id.joining_title))
            assertEquals(emptyList<String>(), server.requests)

            enrol.type(R.id.link, server.link)
            val address = checkNotNull(EnrolmentLink.read(server.link) as? EnrolmentLink.Reading.Good).link.server
            assertEquals(app.getString(R.string.link_server_own_ca, address), enrol.text(R.id.link_server))
            enrol.press(R.id.join)
            until("joined") { enrol.isFinishing }

            app.startAgain()
            server.requests.clear()
            app.scope.launch { app.learning.withClient { it.checkIn() } }
            until("asked again") { "POST /v1/check-in" in server.requests }
        }
    }

    @Test
    fun `a token that the server refuses leaves nothing behind and can be replaced`() {
        PlayedServer().use { server ->
            app.settings.hasConsent = true
            val enrol = open<EnrolActivity>().get()
            server.refusal = 403 to "token-unknown"
            enrol.type(R.id.link, server.link)
            enrol.press(R.id.join)
            until("refused") { enrol.isShown(R.id.join) && enrol.isShown(R.id.joining) }
            assertEquals(app.getString(R.string.joining_refused_title), enrol.text(R.id.joining_title))
            assertNull(app.settings.link)
            assertFalse(app.clientFolder.exists())
            server.refusal = null
            enrol.press(R.id.join)
            until("joined") { enrol.isFinishing }
        }
    }

    @Test
    fun `who was enrolled before the network went joins as the same client, with the same token`() {
        PlayedServer().use { server ->
            app.settings.hasConsent = true
            server.badCheckIn = true
            val enrol = open<EnrolActivity>().get()
            enrol.type(R.id.link, server.link)
            enrol.press(R.id.join)
            until("failed") { enrol.isShown(R.id.join) && enrol.isShown(R.id.joining) }
            assertFalse(app.settings.isEnrolled)
            server.badCheckIn = false
            enrol.press(R.id.join)
            until("joined") { enrol.isFinishing }
            assertEquals(1, server.requests.count { it == "POST /v1/clients" })
        }
    }

    @Test
    fun `a bad link disables Join and says why`() {
        val enrol = open<EnrolActivity>().get()
        val join = enrol.findViewById<Button>(R.id.join)
        assertFalse(join.isEnabled || enrol.isShown(R.id.link_problem))
        enrol.type(R.id.link, "http://fl.example.org/join#token=a")
        val said = app.getString(R.string.link_server_not_secure, "http://fl.example.org")
        assertEquals(said, enrol.text(R.id.link_problem))
        assertFalse(join.isEnabled || enrol.isShown(R.id.invitation))
        enrol.type(R.id.link, "https://fl.example.org/join#token=a")
        assertTrue(join.isEnabled && enrol.isShown(R.id.invitation))
        assertFalse(enrol.isShown(R.id.link_problem))
        assertEquals(app.getString(R.string.link_operator_missing), enrol.text(R.id.link_operator))
    }

    private fun texts(view: View): List<String> =
        when (view) {
            is ListView ->
                (0 until view.adapter.count).flatMap { texts(view.adapter.getView(it, null, view)) }
            is ViewGroup -> (0 until view.childCount).flatMap { texts(view.getChildAt(it)) }
            is TextView -> listOf(view.text.toString())
            else -> emptyList()
        }

    private companion object {
        const val CODE_PX = 1_400
        const val PHOTO_WIDTH = 3_000
        const val PHOTO_HEIGHT = 2_400
        const val ASKEW_DEGREES = 7f
    }
}
