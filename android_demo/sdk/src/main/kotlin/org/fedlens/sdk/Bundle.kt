package org.fedlens.sdk

import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.sdk.ManifestException.Reason
import org.fedlens.sdk.blob.Blob
import java.io.File

/**
 * A bundle's folder: `manifest.pb` and `parts/<sha256>`; other files are ignored.
 *
 * Parts are found by digest; a manifest never supplies a file name.
 */
public class Bundle internal constructor(
    private val folder: File,
    internal val manifest: Manifest,
    private val raw: ByteArray,
) {
    /** SHA-256, 32 bytes, of the manifest's bytes: the bundle's name. */
    public val id: ByteArray by lazy { sha256(raw) }

    /** The file of the part with this digest, which need not exist. */
    public fun part(digest: ByteArray): File = File(File(folder, PARTS_FOLDER), digest.toHex())

    /**
     * The initial weights, one tensor for each of `manifest.tensors`.
     *
     * @throws BlobException The part is not a blob.
     * @throws java.io.IOException The part cannot be read.
     */
    public fun initial(): Blob = Blob.open(part(manifest.initial.toByteArray()), manifest.initial.toByteArray())

    /**
     * Check that a part exists and has its digest.
     *
     * @throws ManifestException It is missing or damaged; the text names it.
     * @throws java.io.IOException It cannot be read.
     */
    public fun checkPart(digest: ByteArray) {
        val file = part(digest)
        if (!file.isFile) throw ManifestException(Reason.PART_MISSING, "part ${digest.toHex()} is missing")
        if (!sha256(file).contentEquals(digest)) {
            throw ManifestException(Reason.PART_DAMAGED, "part ${digest.toHex()} is damaged (its digest differs)")
        }
    }

    public companion object {
        private const val MANIFEST_FILE = "manifest.pb"
        private const val PARTS_FOLDER = "parts"

        /**
         * Read a bundle's folder and check its manifest.
         *
         * @param formats Formats whose programs must be present and intact, besides initial weights and frozen tensors;
         *     null: every part of the manifest.
         * @throws ManifestException The folder holds no bundle, a damaged one, or one of another version; the message
         *     names the part.
         * @throws java.io.IOException The folder cannot be read.
         */
        public fun open(
            folder: File,
            formats: Set<ProgramFormat>? = null,
        ): Bundle {
            val file = File(folder, MANIFEST_FILE)
            if (!file.isFile) {
                throw ManifestException(Reason.MISSING, "$folder is not a bundle: it has no $MANIFEST_FILE")
            }
            if (file.length() > Manifests.MAX_BYTES) {
                throw ManifestException(Reason.TOO_LARGE, "$file has more than ${Manifests.MAX_BYTES} bytes")
            }
            val raw = file.readBytes()
            val bundle = Bundle(folder, Manifests.parse(raw), raw)
            Manifests.parts(bundle.manifest, formats).forEach(bundle::checkPart)
            return bundle
        }

        /**
         * The bundle with this manifest; its parts, which may arrive later, are not checked.
         *
         * @param folder The folder in which its parts are, or will be.
         * @throws ManifestException The manifest is damaged, or of another version.
         */
        internal fun of(
            folder: File,
            raw: ByteArray,
        ): Bundle = Bundle(folder, Manifests.parse(raw), raw)
    }
}
