package org.fedlens.sdk

import com.google.protobuf.InvalidProtocolBufferException
import org.fedlens.proto.v1.SignedStatement
import org.fedlens.proto.v1.Statement
import java.security.AlgorithmParameters
import java.security.GeneralSecurityException
import java.security.KeyFactory
import java.security.PublicKey
import java.security.Signature
import java.security.interfaces.ECPublicKey
import java.security.spec.ECFieldFp
import java.security.spec.ECGenParameterSpec
import java.security.spec.ECParameterSpec
import java.security.spec.X509EncodedKeySpec
import java.util.Base64
import kotlin.math.roundToLong

/**
 * The public key of somebody whose bundles an app runs.
 *
 * @property id SHA-256 of the key, which statements name.
 */
public class Publisher private constructor(
    private val key: PublicKey,
) {
    public val id: ByteArray = sha256(key.encoded)

    /** Tells whether [signature] is this publisher's, of the bytes of a [statement]. */
    internal fun hasSigned(
        statement: ByteArray,
        signature: ByteArray,
    ): Boolean {
        val verifier = Signature.getInstance("SHA256withECDSA")
        verifier.initVerify(key)
        verifier.update(Statements.CONTEXT.toByteArray())
        verifier.update(statement)
        return try {
            verifier.verify(signature)
        } catch (_: GeneralSecurityException) {
            false // it is no signature at all
        }
    }

    public companion object {
        private const val BEGIN = "-----BEGIN PUBLIC KEY-----"
        private const val END = "-----END PUBLIC KEY-----"
        private val P256 =
            AlgorithmParameters
                .getInstance("EC")
                .apply { init(ECGenParameterSpec("secp256r1")) }
                .getParameterSpec(ECParameterSpec::class.java)
                .curve

        /**
         * The publisher whose `.pub` file, made by `fedlens keys new`, holds this text.
         *
         * @throws StatementException It is no public key of ECDSA on P-256.
         */
        @Throws(StatementException::class)
        public fun of(pem: String): Publisher {
            val text = pem.trim()
            val key =
                try {
                    require(text.startsWith(BEGIN) && text.endsWith(END)) { "it is not in PEM form" }
                    val encoded = Base64.getMimeDecoder().decode(text.removeSurrounding(BEGIN, END))
                    KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(encoded))
                } catch (error: IllegalArgumentException) {
                    throw refused(error)
                } catch (error: GeneralSecurityException) {
                    throw refused(error)
                }
            if (!isOnP256(key as ECPublicKey)) throw refused(null)
            return Publisher(key)
        }

        /** Tells whether a point is on the curve, for which the JDK's own reader does not look. */
        private fun isOnP256(key: ECPublicKey): Boolean {
            val (x, y) = key.w.affineX to key.w.affineY
            val outside = y.pow(2) - x.pow(3) - P256.a * x - P256.b
            return key.params.curve == P256 && outside.mod((P256.field as ECFieldFp).p).signum() == 0
        }

        private fun refused(cause: Exception?) =
            StatementException(
                StatementException.Reason.KEY,
                "no public key of ECDSA on P-256" + (cause?.message?.let { ": $it" } ?: ""),
                cause,
            )
    }
}

/**
 * A publisher's statements about bundles. A signature says who made a bundle; it does not say what weights, learning
 * rate or batch a server gives to the programs in it.
 */
internal object Statements {
    const val CONTEXT = "fedlens/bundle/v1"
    const val MAX_BYTES = 16 shl 10
    private const val MAX_NAME_CHARACTERS = 200
    private const val DIGEST_BYTES = 32

    /** The digits that name a digest in messages. */
    const val SHOWN_DIGITS = 12

    private const val DAY_S = 86_400.0

    /** The clock of a phone may be so wrong. */
    private const val CLOCK_S = DAY_S

    /**
     * The statement in [signed] about the bundle whose manifest has the SHA-256 [manifest].
     *
     * @throws StatementException None of [publishers] has signed it, or it is about another bundle.
     */
    fun verified(
        signed: ByteArray,
        manifest: ByteArray,
        publishers: Iterable<Publisher>,
    ): Statement {
        if (signed.size > MAX_BYTES) refuse(StatementException.Reason.MALFORMED, "a statement of ${signed.size} bytes")
        val (outer, statement) =
            try {
                val outer = SignedStatement.parseFrom(signed)
                outer to Statement.parseFrom(outer.statement)
            } catch (error: InvalidProtocolBufferException) {
                throw StatementException(StatementException.Reason.MALFORMED, "no readable statement", error)
            }
        if (!isWhole(statement)) refuse(StatementException.Reason.MALFORMED, "the statement is not whole")
        val named = statement.publisher.toByteArray()
        val trusted = publishers.toList()
        val publisher = trusted.find { it.id.contentEquals(named) }
        if (publisher == null) {
            val names = trusted.joinToString { shown(it.id) }.ifEmpty { "nobody" }
            val text = "the bundle is published by ${shown(named)}, trusted is $names"
            refuse(StatementException.Reason.PUBLISHER, text)
        }
        if (!publisher.hasSigned(outer.statement.toByteArray(), outer.signature.toByteArray())) {
            refuse(StatementException.Reason.SIGNATURE, "the signature is not that of the publisher who is named")
        }
        if (!statement.manifest.toByteArray().contentEquals(manifest)) {
            refuse(StatementException.Reason.BUNDLE, "the statement is about another bundle")
        }
        return statement
    }

    /**
     * Checks that a verified [statement] is for one of the ids and names in [audience], and not below [floor], the
     * greatest of the publisher's floors for bundles of that name that this client has seen.
     *
     * @throws StatementException It is not.
     */
    fun check(
        statement: Statement,
        audience: Set<String>,
        floor: Long,
    ) {
        if (!statement.anyApp && statement.audienceList.none(audience::contains)) {
            val found = audience.sorted().joinToString().ifEmpty { "nameless" }
            val text = "the bundle is for ${statement.audienceList.joinToString()}; this client is $found"
            refuse(StatementException.Reason.AUDIENCE, text)
        }
        if (statement.serial < floor) {
            val withdrawn = "its publisher withdrew those below $floor"
            val text = "bundle '${statement.name}' has serial ${statement.serial}; $withdrawn"
            refuse(StatementException.Reason.SERIAL, text)
        }
    }

    /**
     * Checks that a client may still train at the time [nowS], in seconds since the epoch, as far as clocks can be
     * believed.
     *
     * @throws StatementException The statement has ended.
     */
    fun checkTime(
        statement: Statement,
        nowS: Double,
    ) {
        if (nowS > statement.notAfter + CLOCK_S) {
            val days = ((nowS - statement.notAfter) / DAY_S).roundToLong()
            val text = "the publisher's statement about the bundle ended $days days ago"
            refuse(StatementException.Reason.EXPIRED, text)
        }
    }

    private fun isWhole(statement: Statement): Boolean =
        statement.manifest.size() == DIGEST_BYTES &&
            statement.publisher.size() == DIGEST_BYTES &&
            statement.name.codePointCount(0, statement.name.length) in 1..MAX_NAME_CHARACTERS &&
            // The wire's numbers have no sign; those from 2^63 on are negative here.
            statement.serial > 0 &&
            statement.floor in 0..statement.serial &&
            statement.audienceList.isEmpty() == statement.anyApp &&
            statement.audienceList.none(String::isEmpty) &&
            statement.notAfter > 0

    private fun shown(id: ByteArray) = id.toHex().take(SHOWN_DIGITS)

    private fun refuse(
        reason: StatementException.Reason,
        text: String,
    ): Nothing = throw StatementException(reason, text)
}
