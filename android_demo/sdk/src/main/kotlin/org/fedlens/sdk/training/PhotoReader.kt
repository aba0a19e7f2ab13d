package org.fedlens.sdk.training

import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.photo.PhotoFile
import org.fedlens.sdk.photo.Photos
import org.fedlens.sdk.sha256
import java.io.File
import java.io.IOException
import java.nio.ByteBuffer

/** The features of photos in files, computed by the programs of a bundle. */
internal class PhotoReader(
    private val engine: Engine,
    private val decoder: PhotoDecoder,
) {
    private val manifest: Manifest = engine.bundle.manifest
    private val views = manifest.storedViews

    /**
     * The features, float32 [F], of any photo file.
     *
     * @throws PhotoException The file cannot be used as a photo.
     * @throws IOException The file cannot be read.
     * @throws org.fedlens.sdk.EngineException A program could not be run, or gave a NaN.
     */
    fun features(file: File): FloatArray = engine.embed(input(file.readBytes()))

    /** The features of an album's photo; failures as above. */
    fun features(photo: Photo): FloatArray = engine.embed(input(content(photo)))

    /** The features, float32 [A, F], of the stored views of an album's photo. */
    fun storedViews(photo: Photo): FloatArray {
        val input = input(content(photo))
        val slots = Manifests.program(manifest, "view").inputsList
        val uniforms = slots.first { it.kind == SlotKind.SLOT_KIND_UNIFORM }.shapeList[1].toInt()
        var found = FloatArray(0)
        for (view in 0 until views) {
            val drawn = KeyedHash.viewUniforms(NO_SEED, photo.entry.photo, view, uniforms)
            val features = engine.embed(engine.view(input, drawn))
            if (view == 0) found = FloatArray(Math.multiplyExact(views, features.size))
            features.copyInto(found, view * features.size)
        }
        return found
    }

    /** The bytes of a photo; an [IOException] if they have changed since the album was read. */
    private fun content(photo: Photo): ByteArray {
        val raw = photo.file.readBytes()
        if (!sha256(raw).contentEquals(photo.entry.photo)) throw IOException("the file holds something else now")
        return raw
    }

    private fun input(raw: ByteArray): FloatArray {
        val rule = manifest.preprocessing
        val file = PhotoFile.read(ByteBuffer.wrap(raw))
        return decoder.decode(raw).use { source ->
            Photos.asInput(Photos.prepare(source, file.orientation, rule.height, rule.width))
        }
    }

    private companion object {
        /** The seed of stored views: they belong to no assignment, so that all assignments share their features. */
        val NO_SEED = ByteArray(KeyedHash.DIGEST_BYTES)
    }
}
