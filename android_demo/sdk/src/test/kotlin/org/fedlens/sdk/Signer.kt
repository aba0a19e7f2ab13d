package org.fedlens.sdk

import com.google.protobuf.ByteString
import org.fedlens.proto.v1.SignedStatement
import org.fedlens.proto.v1.Statement
import java.security.KeyPairGenerator
import java.security.Signature
import java.security.spec.ECGenParameterSpec
import java.util.Base64

/** A publisher with its private key. */
internal class Signer {
    private val keys =
        KeyPairGenerator.getInstance("EC").apply { initialize(ECGenParameterSpec("secp256r1")) }.generateKeyPair()
    val publisher =
        Base64.getMimeEncoder().encodeToString(keys.public.encoded).let {
            Publisher.of("-----BEGIN PUBLIC KEY-----\n$it\n-----END PUBLIC KEY-----\n")
        }

    /** A signed statement about the bundle with this digest; for any app if there is no [audience]. */
    fun sign(
        bundle: ByteArray,
        serial: Long = 1,
        floor: Long = 0,
        audience: String? = null,
        notAfter: Long = FAR,
        named: Signer = this,
    ): ByteString {
        val statement =
            Statement
                .newBuilder()
                .setManifest(ByteString.copyFrom(bundle))
                .setPublisher(ByteString.copyFrom(named.publisher.id))
                .setName("animals")
                .setSerial(serial)
                .setFloor(floor)
                .setAnyApp(audience == null)
                .addAllAudience(listOfNotNull(audience))
                .setNotAfter(notAfter)
                .build()
                .toByteString()
        val signature =
            Signature.getInstance("SHA256withECDSA").run {
                initSign(keys.private)
                update(Statements.CONTEXT.toByteArray())
                update(statement.toByteArray())
                sign()
            }
        return SignedStatement
            .newBuilder()
            .setStatement(statement)
            .setSignature(ByteString.copyFrom(signature))
            .build()
            .toByteString()
    }

    private companion object {
        // The year 2100.
        const val FAR = 4_102_444_800L
    }
}
