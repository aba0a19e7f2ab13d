package org.fedlens.example

import android.app.Activity
import android.app.AlertDialog
import android.content.Intent
import android.os.Bundle
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.TextView
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.MainScope
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch
import kotlinx.coroutines.withContext
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.album.AlbumPhoto
import org.fedlens.sdk.album.PhotoPicker
import java.io.IOException

/** Adds photos, suggests what is on them, and learns when told to. */
class MainActivity : Activity() {
    private val fedlens get() = (application as ExampleApp).fedlens
    private val scope = MainScope()
    private lateinit var status: TextView

    override fun onCreate(state: Bundle?) {
        super.onCreate(state)
        status = TextView(this)
        val add = Button(this).apply { text = "Add a photo" }
        add.setOnClickListener {
            startActivityForResult(PhotoPicker.intent(), ADD)
        }
        val learn = Button(this).apply { text = "Learn now" }
        learn.setOnClickListener { ask() }
        val column = LinearLayout(this).apply { orientation = LinearLayout.VERTICAL }
        for (view in listOf(add, learn, status)) column.addView(view)
        setContentView(column)
        scope.launch { fedlens.status.collect { status.text = "$it" } }
    }

    override fun onActivityResult(
        request: Int,
        result: Int,
        data: Intent?,
    ) {
        val uri = PhotoPicker.picked(data).firstOrNull() ?: return
        attempt {
            val album = fedlens.album()
            val photo =
                withContext(Dispatchers.IO) {
                    val content = contentResolver.openInputStream(uri)?.use { it.readBytes() }
                    album.add(content ?: throw IOException("no such photo"), uri.lastPathSegment.orEmpty())
                }
            // Before the first check-in there is no model yet.
            val guesses = if (fedlens.client.classNames().isEmpty()) emptyMap() else fedlens.client.predict(photo.file)
            confirm(photo, guesses.maxByOrNull { it.value }?.key.orEmpty())
        }
    }

    private fun confirm(
        photo: AlbumPhoto,
        guess: String,
    ) {
        val label = EditText(this).apply { setText(guess) }
        AlertDialog
            .Builder(this)
            .setTitle("What is on it?")
            .setView(label)
            .setPositiveButton("Save") { _, _ ->
                attempt {
                    val album = fedlens.album()
                    withContext(Dispatchers.IO) { album.label(photo.id, "${label.text}") }
                    fedlens.client.embedNew()
                }
            }.show()
    }

    /** Ask for what the policy then allows. */
    private fun ask() {
        AlertDialog
            .Builder(this)
            .setTitle("Learn with others?")
            .setMessage("What the model learns and how many photos it recognises goes to fl.example.org. Photos stay.")
            .setPositiveButton("Agree") { _, _ ->
                (application as ExampleApp).agree()
                fedlens.learnNow()
            }.setNegativeButton("No", null)
            .show()
    }

    private fun attempt(work: suspend () -> Unit) {
        scope.launch {
            try {
                work()
            } catch (error: FedLensException) {
                status.text = "${error.reason}: ${error.message}"
            } catch (error: IOException) {
                status.text = error.message
            }
        }
    }

    override fun onDestroy() {
        scope.cancel()
        super.onDestroy()
    }

    private companion object {
        const val ADD = 1
    }
}
