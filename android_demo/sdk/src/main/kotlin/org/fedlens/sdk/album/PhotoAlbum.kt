package org.fedlens.sdk.album

import org.fedlens.sdk.AlbumEntry
import org.fedlens.sdk.KeyedHash
import org.fedlens.sdk.PhotoException
import org.fedlens.sdk.Platform
import org.fedlens.sdk.StateException
import org.fedlens.sdk.photo.PhotoFile
import org.fedlens.sdk.sha256
import org.fedlens.sdk.store.Database
import org.fedlens.sdk.store.FolderLock
import org.fedlens.sdk.store.Row
import org.fedlens.sdk.store.Schema
import org.fedlens.sdk.store.Statements
import org.fedlens.sdk.store.makeFolder
import org.fedlens.sdk.store.textOrNull
import org.fedlens.sdk.store.writeDurably
import org.fedlens.sdk.store.writing
import org.fedlens.sdk.toHex
import java.io.Closeable
import java.io.File
import java.nio.ByteBuffer

/**
 * Photos copied into a folder of the app, with their labels.
 *
 *     photos/<sha256>   each photo's bytes, once however often it was added
 *     album.sqlite3     its rows
 *     lock              held while the album is open
 *
 * A method returns when its changes are on the disk. After a crash at any point, opening the album removes files
 * without a row and rows without a file. Methods access the disk and may be called from any thread. Failures are a
 * [StateException].
 */
public class PhotoAlbum private constructor(
    private val photos: File,
    private val database: Database,
    private val lock: FolderLock,
    private val nowMs: () -> Long,
    private val jpegOf: (ByteArray) -> ByteArray?,
) : ExampleSource,
    Closeable {
    private val turn = Any()
    private var listener: (() -> Unit)? = null

    /**
     * Add a photo.
     *
     * @param content The file's bytes: JPEG, PNG, WebP or BMP; or HEIC where the platform decodes it, as Android does
     *     from 9 on, of which a JPEG is stored.
     * @param name Name of the file, for people.
     * @param label Name of its class; null: none yet.
     * @throws PhotoException The file is not such a photo; see the reason.
     * @throws StateException The disk is full.
     */
    @Throws(PhotoException::class, StateException::class)
    public fun add(
        content: ByteArray,
        name: String,
        label: String? = null,
    ): AlbumPhoto {
        val stored = supported(content)
        val digest = sha256(stored)
        val file = file(digest)
        return synchronized(turn) {
            val isNew = !file.exists()
            if (isNew) {
                writing("photo folder $photos") {
                    writeDurably(File(photos, FRESH), { file }) { it.write(stored) }
                }
            }
            try {
                database.transaction { insert(it, digest, name, label) }
            } catch (error: StateException) {
                if (isNew) file.delete()
                throw error
            }
        }
    }

    /** Sets a photo's class; null removes it. An unknown id has no effect. */
    @Throws(StateException::class)
    public fun label(
        id: Long,
        label: String?,
    ) {
        database.transaction { it.run("UPDATE photo SET label = ? WHERE id = ?", label, id) }
    }

    /** Store a model's suggestion for a photo, with its probability in 0..1. */
    @Throws(StateException::class)
    public fun suggest(
        id: Long,
        label: String,
        probability: Double,
    ) {
        database.transaction {
            it.run("UPDATE photo SET suggested = ?, probability = ? WHERE id = ?", label, probability, id)
        }
    }

    /**
     * Delete a photo and its file. Its features stay in the client's folder until [takeDeleted] passes the digest to
     * [org.fedlens.sdk.FedLensClient.dropFeatures].
     */
    @Throws(StateException::class)
    public fun delete(id: Long) {
        remove("WHERE id = ?", id)
    }

    /** Delete every photo, as [delete] does. */
    @Throws(StateException::class)
    public fun deleteAll() {
        remove("")
    }

    /** Every photo, newest first. */
    @Throws(StateException::class)
    public fun all(): List<AlbumPhoto> = list("ORDER BY id DESC")

    /** The labelled photos. Copies of the same content are numbered by class and file name. */
    @Throws(StateException::class)
    override fun examples(): Examples {
        val copies = HashMap<String, Int>()
        val byBytes = Comparator<String> { a, b -> KeyedHash.compareUnsigned(a.toByteArray(), b.toByteArray()) }
        val ordered =
            list("WHERE label IS NOT NULL ORDER BY id")
                .sortedWith(compareBy<AlbumPhoto, String>(byBytes) { it.label.orEmpty() }.thenBy(byBytes) { it.name })
        return Examples(
            ordered
                .map { photo ->
                    val copy = copies.merge(photo.file.name, 1, Int::plus) ?: 1
                    Photo(AlbumEntry(photo.sha256, copy - 1), photo.label.orEmpty(), photo.file, photo.isTest)
                }.sortedBy { it.entry },
        )
    }

    /**
     * Set the listener that has [takeDeleted] called, in a coroutine of its own; null removes it. It is called now and
     * after every deletion, if deleted photos wait to be taken.
     */
    public fun onDeleted(listener: (() -> Unit)?) {
        synchronized(turn) {
            this.listener = listener
            tell()
        }
    }

    /**
     * Pass the digests of deleted photos to [take], which has to delete what was computed of them, and forget them then.
     * If it throws, they are passed again next time.
     */
    public suspend fun takeDeleted(take: suspend (List<ByteArray>) -> Unit) {
        val deleted = deleted().ifEmpty { return }
        take(deleted)
        database.transaction { db -> deleted.forEach { db.run("DELETE FROM deleted WHERE sha256 = ?", it) } }
    }

    /** Close the album and release its folder. */
    override fun close() {
        database.close()
        lock.close()
    }

    private fun supported(content: ByteArray): ByteArray =
        try {
            content.also { PhotoFile.read(ByteBuffer.wrap(it)) }
        } catch (refused: PhotoException) {
            if (refused.reason != PhotoException.Reason.HEIC) throw refused
            jpegOf(content)?.also { PhotoFile.read(ByteBuffer.wrap(it)) } ?: throw refused
        }

    private fun insert(
        db: Statements,
        digest: ByteArray,
        name: String,
        label: String?,
    ): AlbumPhoto {
        db.run("DELETE FROM deleted WHERE sha256 = ?", digest)
        db.run(
            "INSERT INTO photo (sha256, name, label, added_at_ms) VALUES (?, ?, ?, ?)",
            digest,
            name,
            label,
            nowMs(),
        )
        return db.query("$SELECT WHERE id = last_insert_rowid()", row = ::photo).single()
    }

    private fun remove(
        where: String,
        vararg arguments: Any?,
    ) {
        synchronized(turn) {
            val gone =
                database.transaction { db ->
                    val some = db.query("SELECT DISTINCT sha256 FROM photo $where", *arguments) { it.bytes(0) }
                    db.run("DELETE FROM photo $where", *arguments)
                    some.filter { db.query("SELECT 1 FROM photo WHERE sha256 = ?", it) { }.isEmpty() }.onEach {
                        db.run("INSERT OR IGNORE INTO deleted VALUES (?)", it)
                    }
                }
            // After a crash here, the next `open` deletes the files.
            gone.forEach { file(it).delete() }
            tell()
        }
    }

    private fun tell() {
        if (deleted().isNotEmpty()) listener?.invoke()
    }

    private fun deleted(): List<ByteArray> =
        database.transaction { db -> db.query("SELECT sha256 FROM deleted") { it.bytes(0) } }

    private fun list(
        clause: String,
        vararg arguments: Any?,
    ): List<AlbumPhoto> = database.transaction { db -> db.query("$SELECT $clause", *arguments, row = ::photo) }

    private fun photo(row: Row): AlbumPhoto {
        val digest = row.bytes(1)
        return AlbumPhoto(
            id = row.long(0),
            sha256 = digest,
            file = file(digest),
            name = row.text(2),
            label = row.textOrNull(3),
            suggested = row.textOrNull(4),
            probability = row.double(5),
            addedAtMs = row.long(6),
            isTest = KeyedHash.isTestPhoto(digest),
        )
    }

    private fun file(digest: ByteArray) = File(photos, digest.toHex())

    /** Delete files without a row and rows without a file, as left by a crash. */
    private fun sweep() {
        val names =
            database.transaction { db ->
                val digests = db.query("SELECT DISTINCT sha256 FROM photo") { it.bytes(0) }
                digests.filterNot { file(it).isFile }.forEach { dropRows(db, it) }
                digests.mapTo(HashSet()) { it.toHex() }
            }
        photos.listFiles()?.forEach { if (it.name !in names) it.delete() }
    }

    private fun dropRows(
        db: Statements,
        digest: ByteArray,
    ) {
        db.run("DELETE FROM photo WHERE sha256 = ?", digest)
        db.run("INSERT OR IGNORE INTO deleted VALUES (?)", digest)
    }

    public companion object {
        private const val FRESH = "new"
        private const val SELECT =
            "SELECT id, sha256, name, label, suggested, probability, added_at_ms FROM photo"

        private val SCHEMA =
            Schema(
                1,
                """CREATE TABLE photo (
                    id INTEGER PRIMARY KEY AUTOINCREMENT, sha256 BLOB NOT NULL, name TEXT NOT NULL, label TEXT,
                    suggested TEXT, probability REAL NOT NULL DEFAULT 0, added_at_ms INTEGER NOT NULL
                )""",
                "CREATE INDEX photo_sha256 ON photo (sha256)",
                "CREATE INDEX photo_label ON photo (label)",
                "CREATE TABLE deleted (sha256 BLOB PRIMARY KEY) WITHOUT ROWID",
            )

        /**
         * Open an album, creating it if necessary.
         *
         * @param folder The album's own folder, created if necessary; no other app may read it.
         * @param platform Opens its database, and decodes HEIC.
         * @throws StateException It is open elsewhere, damaged, from a newer version, or not writable.
         */
        @JvmStatic
        @Throws(StateException::class)
        public fun open(
            folder: File,
            platform: Platform,
        ): PhotoAlbum = open(folder, System::currentTimeMillis, platform::jpegOf, platform::openDatabase)

        /** [open] for photos of other formats than HEIC, given the platform's function that opens a database. */
        @JvmStatic
        @Throws(StateException::class)
        public fun open(
            folder: File,
            openDatabase: (File) -> Database,
        ): PhotoAlbum = open(folder, System::currentTimeMillis, { null }, openDatabase)

        internal fun open(
            folder: File,
            nowMs: () -> Long,
            jpegOf: (ByteArray) -> ByteArray?,
            openDatabase: (File) -> Database,
        ): PhotoAlbum {
            makeFolder(folder, "photo album")
            val lock = FolderLock.take(folder, "photo album")
            var database: Database? = null
            try {
                val photos = File(folder, "photos")
                makeFolder(photos, "photo album")
                database = SCHEMA.open(File(folder, "album.sqlite3"), openDatabase)
                return PhotoAlbum(photos, database, lock, nowMs, jpegOf).apply { sweep() }
            } catch (error: Throwable) {
                database?.close()
                lock.close()
                throw error
            }
        }
    }
}
