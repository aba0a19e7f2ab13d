package org.fedlens.sdk.album

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.FedLensException
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.sha256
import org.fedlens.sdk.training.toBytes
import java.io.File
import java.io.IOException

/**
 * The source of a client's labelled examples, from wherever an app keeps them; [PhotoAlbum] is one. It may change
 * between rounds; each round works on a snapshot.
 */
public fun interface ExampleSource {
    /** The current labelled examples; called on one of the client's threads. */
    @Throws(FedLensException::class, IOException::class)
    public fun examples(): Examples
}

/**
 * A snapshot of a source.
 *
 * @property labelled The labelled examples in any order, each entry once.
 * @property skipped Names of what cannot be used as an example, by reason.
 */
public class Examples(
    public val labelled: List<Example>,
    public val skipped: Map<String, List<String>> = emptyMap(),
)

/**
 * One labelled example.
 *
 * @property entry SHA-256 of the content, which must stay the same, and copy number.
 * @property label Name of the class; examples of a class that the bundle lacks are skipped and reported.
 * @property name Name for people, where the example is reported.
 * @property isTest True for a test example, which is never trained on.
 */
public sealed class Example(
    public val entry: AlbumEntry,
    public val label: String,
    public val name: String,
    public val isTest: Boolean,
)

/**
 * A photo in a file.
 *
 * @property file The file; its bytes are checked against the digest when they are read.
 */
public class Photo(
    entry: AlbumEntry,
    label: String,
    public val file: File,
    isTest: Boolean,
) : Example(entry, label, file.name, isTest)

/**
 * A photo from anywhere.
 *
 * @property content The bytes, as of a file of a supported format, which are checked against the digest.
 */
public class PhotoBytes
    @JvmOverloads
    constructor(
        entry: AlbumEntry,
        label: String,
        name: String,
        isTest: Boolean = KeyedHash.isTestPhoto(entry.photo),
        public val content: Content,
    ) : Example(entry, label, name, isTest) {
        /** Where the bytes of a photo come from. */
        public fun interface Content {
            /** Read the bytes; called on a thread of the client, seldom twice, because features are cached. */
            @Throws(IOException::class)
            public fun read(): ByteArray
        }
    }

/**
 * What the bundle's frozen backbone makes of an example, computed by the app. A bundle that augments photos cannot
 * train on it.
 *
 * @property values The features, as many as program `embed` returns. The digest is that of their little-endian float32.
 * @param copy Number of the example among those with the same values, from 0.
 */
public class Features
    @JvmOverloads
    constructor(
        label: String,
        name: String,
        public val values: FloatArray,
        copy: Int = 0,
        isTest: Boolean = KeyedHash.isTestPhoto(digest(values)),
    ) : Example(AlbumEntry(digest(values), copy), label, name, isTest) {
        private companion object {
            fun digest(values: FloatArray): ByteArray = sha256(values.toBytes())
        }
    }
