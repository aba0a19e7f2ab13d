package org.fedlens.sdk.store

import org.fedlens.proto.v1.BundleClass
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests

/**
 * Names, 32 bytes, of everything that what is cached of a photo depends on besides the photo.
 *
 * Engines differ in last digits, so the program in the format that is run is part of each.
 */
internal object FeatureSpace {
    /**
     * Of what a photo is for a bundle: the rule of preprocessing with its size and, with a frozen backbone, its program
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

    /** Of the features of a photo's stored views, one after the other. */
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

    /** Of the outputs of program `extract` with the set of tensors whose blob has the digest [extractor]. */
    fun extracted(
        manifest: Manifest,
        format: ProgramFormat,
        extractor: ByteArray,
    ): ByteArray =
        KeyedHash.hash("fedlens/extracted/v1", of(manifest, format), part(manifest, "extract", format), extractor)

    /** The digest of a program's file; of another of its files, if it has none in this format and cannot be run. */
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
