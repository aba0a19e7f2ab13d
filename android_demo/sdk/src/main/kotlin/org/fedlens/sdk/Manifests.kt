package org.fedlens.sdk

import com.google.protobuf.ByteString
import com.google.protobuf.InvalidProtocolBufferException
import org.fedlens.proto.v1.BlobSet
import org.fedlens.proto.v1.ExchangeableTensor
import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.Program
import org.fedlens.proto.v1.ProgramFormat
import org.fedlens.proto.v1.TensorSelector
import org.fedlens.sdk.ManifestException.Reason
import java.util.Locale

/** Functions that read and query manifests. */
internal object Manifests {
    /** Maximum size of a manifest in bytes. */
    const val MAX_BYTES: Int = 1 shl 20

    /** Reserved name of a downloaded set: the initial weights of the client's own bundle. */
    const val INITIAL: String = "initial"

    /**
     * Read and check the bytes of a manifest.
     *
     * @throws ManifestException A field is missing, out of range, or in conflict with another.
     */
    fun parse(raw: ByteArray): Manifest {
        if (raw.size > MAX_BYTES) {
            throw ManifestException(Reason.TOO_LARGE, "a manifest of ${raw.size} bytes; at most $MAX_BYTES are allowed")
        }
        val manifest =
            try {
                Manifest.parseFrom(raw)
            } catch (error: InvalidProtocolBufferException) {
                throw ManifestException(Reason.DAMAGED, "the manifest is damaged: ${error.message}", error)
            }
        ManifestCheck(manifest).run()
        return manifest
    }

    /** The initial weights as a set to download. */
    fun initialSet(manifest: Manifest): BlobSet {
        val part = manifest.partsList.first { it.sha256 == manifest.initial }
        return BlobSet
            .newBuilder()
            .setName(INITIAL)
            .setSha256(part.sha256)
            .setSize(part.size)
            .build()
    }

    /**
     * The name of each class as [locale] has it, in label order: the bundle's for that language, or for a more general
     * one (RFC 4647, lookup), else the class name.
     */
    fun displayNames(
        manifest: Manifest,
        locale: Locale,
    ): Map<String, String> {
        val ranges = listOf(Locale.LanguageRange(locale.toLanguageTag()))
        val tag = Locale.lookupTag(ranges, manifest.displayNamesList.map { it.language })
        // `lookupTag` gives its tag in small letters.
        val found = manifest.displayNamesList.firstOrNull { it.language.equals(tag, ignoreCase = true) }
        return manifest.classNamesList.zip(found?.namesList ?: manifest.classNamesList).toMap()
    }

    /**
     * A program by name.
     *
     * @throws ManifestException There is none of that name.
     */
    fun program(
        manifest: Manifest,
        name: String,
    ): Program =
        manifest.programsList.firstOrNull { it.name == name } ?: throw ManifestException(
            Reason.NO_SUCH_PROGRAM,
            "the bundle has no program '$name'; it has ${manifest.programsList.joinToString { it.name }}",
        )

    /**
     * The digest, 32 bytes, of a program's file in one format.
     *
     * @throws ManifestException The bundle has no such program, or not in that format.
     */
    fun programPart(
        manifest: Manifest,
        name: String,
        format: ProgramFormat,
    ): ByteArray {
        val file = program(manifest, name).filesList.firstOrNull { it.format == format }
        if (file == null) {
            throw ManifestException(Reason.NO_SUCH_PROGRAM, "the bundle has program '$name', but not as $format")
        }
        return file.sha256.toByteArray()
    }

    /**
     * The digests of the parts needed to run programs in these formats: their files, the initial weights, public photos and, for
     * `.pt2` programs only, the frozen tensors; null: every part.
     */
    fun parts(
        manifest: Manifest,
        formats: Set<ProgramFormat>?,
    ): List<ByteArray> {
        if (formats == null) return manifest.partsList.map { it.sha256.toByteArray() }
        val wanted = LinkedHashSet<ByteString>()
        wanted += manifest.initial
        if (manifest.hasPublic()) wanted += manifest.public.sha256
        if (!manifest.frozen.isEmpty && ProgramFormat.PROGRAM_FORMAT_PT2 in formats) wanted += manifest.frozen
        for (program in manifest.programsList) {
            for (file in program.filesList) {
                if (file.format in formats) wanted += file.sha256
            }
        }
        return wanted.map { it.toByteArray() }
    }

    /** The tensors that match every non-empty list of [selector], in the manifest's order. */
    fun select(
        tensors: Iterable<ExchangeableTensor>,
        selector: TensorSelector,
    ): List<ExchangeableTensor> =
        tensors.filter {
            (selector.namesCount == 0 || it.name in selector.namesList) &&
                (selector.kindsCount == 0 || it.kind in selector.kindsList) &&
                (selector.rolesCount == 0 || it.role in selector.rolesList)
        }
}
