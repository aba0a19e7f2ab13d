package org.fedlens.sdk.store

import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests

/**
 * Keys, 32 bytes, of cached values: digests of everything but the photo that a value depends on.
 *
 * Engines differ in the last digits, so each key includes the program in the client's format.
 */
internal object FeatureSpace {
    /**
     * The space of a bundle's features: the preprocessing rule with its size and, with a frozen backbone, its program
     * and weights.
     */
    fun of(
        manifest: Manifest,
        format: ProgramFormat,
    ): ByteArray {
        val rule = manifest.preprocessing
        val numbers = KeyedHash.littleEndian(rule.version, rule.height, rule.width)
        return if (manifest.bundleClass == BundleClass.BUNDLE_CLASS_FROZEN_BACKBONE) {
            KeyedHash.hash(
                "fedlens/features/v1",
                numbers,
                part(manifest, "embed", format),
                manifest.frozen.toByteArray(),
            )
        } else {
            KeyedHash.hash("fedlens/features/v1", numbers)
        }
    }

    /** The space of features of stored views. */
    fun storedViews(
        manifest: Manifest,
        format: ProgramFormat,
    ): ByteArray =
        KeyedHash.hash(
            "fedlens/stored-views/v1",
            of(manifest, format),
            part(manifest, "view", format),
            KeyedHash.littleEndian(manifest.storedViews),
        )

    /** The space of outputs of program `extract` with the extractor whose blob has digest [extractor]. */
    fun extracted(
        manifest: Manifest,
        format: ProgramFormat,
        extractor: ByteArray,
    ): ByteArray =
        KeyedHash.hash("fedlens/extracted/v1", of(manifest, format), part(manifest, "extract", format), extractor)

    /**
     * The digest of a program's file in [format]; of another of its files if there is none, in which case the program
     * cannot run.
     */
    private fun part(
        manifest: Manifest,
        program: String,
        format: ProgramFormat,
    ): ByteArray {
        val files = Manifests.program(manifest, program).filesList
        val file = files.firstOrNull { it.format == format }
        if (file != null) return file.sha256.toByteArray()
        return files.map { it.sha256.toByteArray() }.minWithOrNull(KeyedHash::compareUnsigned) ?: ByteArray(0)
    }
}
