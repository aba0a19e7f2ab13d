package org.fedlens.app

import android.content.Context
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.Platform
import org.fedlens.sdk.Policy
import org.fedlens.sdk.store.KeystoreSecret
import org.fedlens.sdk.store.SecretStore
import java.io.File

/**
 * The parts of the phone that tests replace.
 *
 * @property platform Runs programs, decodes photos, opens databases.
 * @property secrets The store for the identity of the client in a folder.
 * @property limits Changes the owner's policy: tests train on fewer photos than it asks for.
 * @property patienceMs The time limit for a server to answer a request to be forgotten, and to announce a new model.
 * @property longestIdleMs The longest time that a background job waits for a round.
 */
internal class Surroundings(
    val platform: Platform,
    val secrets: (File) -> SecretStore,
    val limits: (Policy) -> Policy = { it },
    val patienceMs: Long = 20_000,
    val longestIdleMs: Long = 120_000,
) {
    companion object {
        /** The surroundings on a phone; keys are in the Android keystore. */
        fun of(context: Context): Surroundings =
            Surroundings(AndroidPlatform(context), { folder -> KeystoreSecret(File(folder, "secret")) })
    }
}
