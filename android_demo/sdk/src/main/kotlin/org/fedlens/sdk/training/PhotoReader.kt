package org.fedlens.sdk.training

import org.fedlens.proto.v1.Manifest
import org.fedlens.proto.v1.SlotKind
import org.fedlens.sdk.EngineException
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.Manifests
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.album.Example
import org.fedlens.sdk.album.Features
import org.fedlens.sdk.album.Photo
import org.fedlens.sdk.album.PhotoBytes
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.photo.PhotoFile
import org.fedlens.sdk.photo.Photos
import org.fedlens.sdk.sha256
import java.io.IOException
import java.nio.ByteBuffer

/** The features of photos, computed by the programs of a bundle. */
internal class PhotoReader(
    private val engine: Engine,
    private val decoder: PhotoDecoder,
) {
    private val manifest: Manifest = engine.bundle.manifest
    private val views = manifest.storedViews
    private val width by lazy {
        val outputs = Manifests.program(manifest, "embed").outputsList
        val shape = outputs.first { it.kind == SlotKind.SLOT_KIND_FEATURES }.shapeList
        Math.toIntExact(shape.reduce(Long::times))
    }

    /**
     * The features, float32 [F], of any photo, given the bytes of its file.
     *
     * @throws PhotoException The file cannot be used as a photo.
     * @throws org.fedlens.sdk.EngineException A program could not be run, or gave a NaN.
     */
    fun features(content: ByteArray): FloatArray = engine.embed(input(content))

    /** The features of a photo of a source; failures as above, and an [IOException] if it cannot be read. */
    fun features(photo: Example): FloatArray = features(content(photo))

    /** True if these can be the features of an example. */
    fun fits(features: FloatArray): Boolean = features.size == width && features.all { it.isFinite() }

    /** These features, given by the app; an [EngineException] if the model does not take them. */
    fun given(features: FloatArray): FloatArray {
        if (fits(features)) return features
        throw EngineException(
            EngineException.Reason.BAD_INPUT,
            "the features must be $width finite numbers; found ${features.size}, " +
                "${features.count { !it.isFinite() }} of them not finite",
        )
    }

    /** The features, float32 [A, F], of the stored views of an album's photo. */
    fun storedViews(photo: Example): FloatArray {
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

    /** The bytes of a photo; an [IOException] if they have changed since the source was read. */
    private fun content(photo: Example): ByteArray {
        val raw =
            when (photo) {
                is Photo -> photo.file.readBytes()
                is PhotoBytes -> photo.content.read()
                is Features -> error("features have no bytes")
            }
        if (!sha256(raw).contentEquals(photo.entry.photo)) throw IOException("the photo is another one now")
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
