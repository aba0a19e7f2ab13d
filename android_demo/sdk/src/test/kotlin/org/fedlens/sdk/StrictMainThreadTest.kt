package org.fedlens.sdk

import android.os.Handler
import android.os.Looper
import org.fedlens.sdk.album.PhotoAlbum
import org.fedlens.sdk.store.AndroidDatabase
import org.fedlens.sdk.store.FileSecret
import org.junit.Assert.assertEquals
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Assume.assumeTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.Shadows.shadowOf
import org.robolectric.annotation.Config
import java.io.File

/** Strict mode notices what it is there for. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [34, 35])
class StrictMainThreadTest {
    @get:Rule
    val folder = TemporaryFolder()

    @Test
    fun `a database that Android's call waits for is noticed, and a test's own is not`() {
        val album = PhotoAlbum.open(folder.root, AndroidDatabase::open)
        album.all()
        assertEquals(emptyList<String>(), StrictMainThread.forget())
        assertNoticed(album::deleteAll)
        album.close()
    }

    @Test
    fun `so is a file`() {
        assumeTrue("this Java has no security manager", StrictMainThread.SEES_FILES)
        assertNoticed(FileSecret(File(folder.root, "secret"))::delete)
    }

    private fun assertNoticed(call: Runnable) {
        Handler(Looper.getMainLooper()).post(call)
        assertThrows(AssertionError::class.java) { shadowOf(Looper.getMainLooper()).idle() }
        val told = StrictMainThread.forget().map { it.lines().first() }
        assertTrue(told.toString(), "the main thread waits: DiskWriteViolation" in told)
    }
}
