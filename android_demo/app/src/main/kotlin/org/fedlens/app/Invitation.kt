package org.fedlens.app

import android.app.Activity
import android.widget.TextView
import org.fedlens.sdk.toHex

/** Show who invites, what for, and whom the owner trusts by joining; nothing without a [link]. */
internal fun Activity.showInvitation(
    app: FedLensApp,
    link: EnrolmentLink?,
) {
    val server =
        when {
            link == null -> null
            link.pins.isNotEmpty() -> getString(R.string.link_server_pinned, link.server)
            link.ca.isNotEmpty() -> getString(R.string.link_server_own_ca, link.server)
            else -> getString(R.string.link_server, link.server)
        }
    val keys = if (app.publishersFromLink) link?.keys.orEmpty() else emptyList()
    val purpose = link?.purpose.orEmpty()
    val texts =
        mapOf(
            R.id.link_operator to link?.let { operator(it) },
            R.id.link_purpose to if (purpose.isEmpty()) null else getString(R.string.link_purpose, purpose),
            R.id.link_server to server,
            R.id.link_key to
                keys.joinToString("\n") { getString(R.string.link_signed_by, it.id.toHex().take(SHOWN_DIGITS)) },
            R.id.link_trust to link?.let { trusted(app, it) },
        )
    for ((id, text) in texts) {
        findViewById<TextView>(id).apply {
            this.text = text.orEmpty()
            isVisible = !text.isNullOrEmpty()
        }
    }
}

private fun Activity.operator(link: EnrolmentLink): String =
    if (link.operator.isEmpty()) {
        getString(R.string.link_operator_missing)
    } else {
        getString(R.string.link_operator, link.operator)
    }

private fun Activity.trusted(
    app: FedLensApp,
    link: EnrolmentLink,
): String =
    when {
        link.publishers.isEmpty() -> getString(R.string.link_trusts_server)
        app.publishersFromLink -> getString(R.string.link_trusts_maker)
        else -> getString(R.string.link_key_ignored) + " " + getString(R.string.link_trusts_server)
    }

// As the commands print ids: enough to compare by eye.
private const val SHOWN_DIGITS = 16
