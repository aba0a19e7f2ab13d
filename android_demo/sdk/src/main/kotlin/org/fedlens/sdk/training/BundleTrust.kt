package org.fedlens.sdk.training

import org.fedlens.sdk.AssignmentException
import org.fedlens.sdk.Publisher
import org.fedlens.sdk.StatementException
import org.fedlens.sdk.Statements
import org.fedlens.sdk.store.Floors
import org.fedlens.sdk.toHex
import java.io.Closeable

/**
 * Trust in publishers of bundles.
 *
 * @property publishers Source of their keys, read before each use of a bundle: a key that is left out is revoked.
 * @property audience Ids of the application and names of federations that this client answers to.
 * @property floors What publishers withdrew; closed with this.
 * @property nowS The clock, in seconds since the epoch.
 */
internal class BundleTrust(
    private val publishers: () -> List<Publisher>,
    private val audience: Set<String>,
    private val floors: Floors,
    private val nowS: () -> Double = { System.currentTimeMillis() / MS_PER_S },
) : Closeable by floors {
    /**
     * Check that a bundle may be used, and note what its publisher withdraws.
     *
     * @param bundle SHA-256 of the manifest.
     * @param signed The serialised `SignedStatement` that the server sent; empty: none.
     * @param trains True if the use is training or evaluation. A bundle whose statement has ended is still good for
     *     predictions, if this client has used it before.
     * @throws AssignmentException With reason `POLICY`: the bundle must not be used so.
     * @throws org.fedlens.sdk.StateException The floors cannot be read or written.
     */
    fun check(
        bundle: ByteArray,
        signed: ByteArray,
        trains: Boolean,
    ) {
        if (signed.isEmpty()) {
            val name = bundle.toHex().take(Statements.SHOWN_DIGITS)
            throw refused("nobody has signed bundle $name; its publisher must, with `fedlens sign`", null)
        }
        try {
            val statement = Statements.verified(signed, bundle, publishers())
            val publisher = statement.publisher.toByteArray()
            Statements.check(statement, audience, floors.of(publisher, statement.name))
            floors.raise(publisher, statement.name, statement.floor)
            if (trains || !floors.hasUsed(bundle)) {
                Statements.checkTime(statement, nowS())
                floors.noteUse(bundle)
            }
        } catch (error: StatementException) {
            throw refused(error.message.orEmpty(), error)
        }
    }

    private fun refused(
        why: String,
        cause: StatementException?,
    ) = AssignmentException(
        AssignmentException.Reason.POLICY,
        "this client runs what its publishers signed: $why",
        cause,
    )

    private companion object {
        const val MS_PER_S = 1_000.0
    }
}
