package org.fedlens.app

import android.view.ViewGroup
import android.widget.Button
import android.widget.GridView
import org.fedlens.app.Phone.isShown
import org.fedlens.app.Phone.open
import org.fedlens.app.Phone.press
import org.fedlens.app.Phone.text
import org.fedlens.app.Phone.type
import org.fedlens.app.Phone.until
import org.fedlens.app.Suggestions.Suggestion
import org.fedlens.sdk.album.AlbumPhoto
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertTrue
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.annotation.Config
import org.robolectric.annotation.GraphicsMode

/** Labelling many photos at once. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35], application = TestApp::class, qualifiers = "w360dp-h740dp-xhdpi")
@GraphicsMode(GraphicsMode.Mode.NATIVE)
class LabelTest {
    private val app get() = Phone.app
    private val photos: List<AlbumPhoto> get() = app.photos.all.value.orEmpty()

    @Test
    fun `chosen photos get one label, which can be taken back`() {
        withPhotos(3) { screen ->
            cell(screen, 0).performClick()
            cell(screen, 2).performClick()
            val chosen = setOf(photos[0].id, photos[2].id)
            assertTrue(cell(screen, 0).isActivated && !cell(screen, 1).isActivated)
            label(screen, "dog").performClick()
            until("labelled") { photos.filter { it.label == "dog" }.mapTo(HashSet()) { it.id } == chosen }
            until("one is left") { screen.findViewById<GridView>(R.id.photos).adapter.count == 1 }
            assertEquals(app.resources.getQuantityString(R.plurals.labelled_as, 2, 2, "dog"), screen.text(R.id.done))

            screen.press(R.id.undo)
            until("taken back") { photos.all { it.label == null } }
            until("chosen again") { cell(screen, 0).isActivated && cell(screen, 2).isActivated }
            assertFalse(screen.isShown(R.id.undo_bar))
        }
    }

    @Test
    fun `the most likely label of all chosen photos comes first, and a search leaves those that match`() {
        withPhotos(2) { screen ->
            screen.press(R.id.choose_all)
            until("suggestions") { photos.all { app.suggestions.all.value[it.id] is Suggestion.Made } }
            Phone.idle()
            val made = photos.map { (app.suggestions.all.value.getValue(it.id) as Suggestion.Made).probabilities }
            val expected = app.settings.classNames.sortedByDescending { name -> made.sumOf { it.getValue(name) } }
            assertEquals(expected, labels(screen))

            screen.type(R.id.search, "M")
            assertEquals(listOf("emu"), labels(screen))
            screen.type(R.id.search, "owl")
            assertTrue(labels(screen).isEmpty() && screen.isShown(R.id.no_match))
        }
    }

    @Test
    fun `photos that show none of the classes are not asked about again, unless that is taken back`() {
        withPhotos(2) { screen ->
            screen.press(R.id.choose_all)
            screen.press(R.id.none_of_these)
            until("none is left") { screen.findViewById<GridView>(R.id.photos).adapter.count == 0 }
            assertEquals(app.getString(R.string.all_labelled), screen.text(R.id.chosen))
            val home = open<CollectActivity>().get()
            assertFalse(home.isShown(R.id.to_label))

            screen.press(R.id.undo)
            until("both are back") { screen.findViewById<GridView>(R.id.photos).adapter.count == 2 }
            until("asked about again") { home.isShown(R.id.to_label) }
        }
    }

    @Test
    fun `home begins with adding photos, then labels them, then learns`() {
        PlayedServer().use { server ->
            Phone.join(server)
            val home = open<CollectActivity>().get()
            until("the album") { app.photos.all.value != null }
            Phone.idle()
            val cards = home.findViewById<ViewGroup>(R.id.cards)
            val first = { (0 until cards.childCount).map(cards::getChildAt).first { it.isVisible }.id }
            assertEquals(R.id.add, first())
            Phone.addPhoto("cat", 1, label = null)
            until("to label") { first() == R.id.to_label }
            Phone.addPhoto("cat", 2, label = null)
            until("several") { home.isShown(R.id.label_several) }
            for (photo in photos) label(photo)
            until("to learn") { first() == R.id.status && home.isShown(R.id.learn_now) }
        }
    }

    private fun label(photo: AlbumPhoto) {
        open<PhotoActivity>(PhotoActivity.intent(app, photo.id)).get().apply {
            until("labels") { findViewById<ViewGroup>(R.id.classes).childCount > 0 }
            findViewById<ViewGroup>(R.id.classes).getChildAt(0).performClick()
        }
        until("labelled") { photos.first { it.id == photo.id }.label != null }
    }

    private fun withPhotos(
        count: Int,
        test: (LabelActivity) -> Unit,
    ) {
        PlayedServer().use { server ->
            Phone.join(server)
            repeat(count) { Phone.addPhoto("cat", it, label = null) }
            val screen = open<LabelActivity>().get()
            until("cells") { screen.findViewById<GridView>(R.id.photos).childCount == count }
            test(screen)
        }
    }

    private fun cell(
        screen: LabelActivity,
        place: Int,
    ): Thumbnail {
        Phone.idle()
        return screen.findViewById<GridView>(R.id.photos).getChildAt(place) as Thumbnail
    }

    private fun chips(screen: LabelActivity): List<Button> {
        val group = screen.findViewById<ViewGroup>(R.id.classes)
        return (0 until group.childCount).map { group.getChildAt(it) as Button }
    }

    private fun labels(screen: LabelActivity) = chips(screen).map { "${it.text}" }

    private fun label(
        screen: LabelActivity,
        name: String,
    ) = chips(screen).first { "${it.text}" == name }
}
