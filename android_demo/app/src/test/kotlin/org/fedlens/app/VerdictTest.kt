package org.fedlens.app

import org.junit.Assert.assertEquals
import org.junit.Test
import org.junit.runner.RunWith
import org.robolectric.RobolectricTestRunner
import org.robolectric.RuntimeEnvironment
import org.robolectric.annotation.Config

/** What is said of a model that gets more, fewer or as many photos right as before. */
@RunWith(RobolectricTestRunner::class)
@Config(sdk = [35], application = TestApp::class)
class VerdictTest {
    private fun said(
        before: Int,
        after: Int,
    ) = Verdict.of(before, after).said(Phone.app.resources, before, after, of = 12)

    @Test
    fun `accuracy that falls is said as plainly as accuracy that rises`() {
        val words =
            listOf("en", "de").map { language ->
                RuntimeEnvironment.setQualifiers("+$language")
                listOf(said(11, 8), said(8, 11), said(8, 8))
            }

        val english =
            listOf(
                "Fewer than before: 8 of 12, before 11.",
                "More than before: 11 of 12, before 8.",
                "As many as before: 8 of 12.",
            )
        val german =
            listOf(
                "Weniger als vorher: 8 von 12, vorher 11.",
                "Mehr als vorher: 11 von 12, vorher 8.",
                "So viele wie vorher: 8 von 12.",
            )
        assertEquals(listOf(english, german), words)
    }
}
