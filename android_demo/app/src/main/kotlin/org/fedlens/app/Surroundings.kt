package org.fedlens.app

import android.content.Context
import org.fedlens.sdk.AndroidPlatform
import org.fedlens.sdk.Platform
import org.fedlens.sdk.store.KeystoreSecret
import org.fedlens.sdk.store.SecretStore
import java.io.File

/**
 * What the app takes from the phone and cannot bring along.
 *
 * @property platform Runs programs, decodes photos, opens databases.
 * @property secrets Where the identity of a client with this folder is kept.
 * @property patienceMs How long a server is given to answer somebody who wants to be forgotten.
 * @property longestIdleMs How long a job in the background waits for a round.
 */
internal class Surroundings(
    val platform: Platform,
    val secrets: (File) -> SecretStore,
    val patienceMs: Long = 20_000,
    val longestIdleMs: Long = 120_000,
) {
    companion object {
        /** Those of a phone; keys are in the Android keystore. */
        fun of(context: Context): Surroundings =
            Surroundings(AndroidPlatform(context), { folder -> KeystoreSecret(File(folder, "secret")) })
    }
}
