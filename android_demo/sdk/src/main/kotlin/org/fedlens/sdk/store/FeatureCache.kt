package org.fedlens.sdk.store

import com.google.protobuf.ByteString
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import java.io.Closeable
import java.io.File
import java.util.concurrent.TimeUnit

/**
 * The cache of values computed once per photo, by [FeatureSpace] and the photo's digest: features of the frozen
 * backbone, of stored views and of extractors.
 *
 * One SQLite file. Its values can be computed again, so a damaged file is replaced, and nothing is stored if the disk
 * is full.
 *
 * @param maxBytes Size above which values are deleted, by the day of last use, oldest first.
 * @throws StateException The file cannot be opened for another reason than damage.
 */
internal class FeatureCache(
    private val file: File,
    private val maxBytes: Long,
    private val openDatabase: (File) -> Database,
    private val today: () -> Long = { TimeUnit.MILLISECONDS.toDays(System.currentTimeMillis()) },
) : Closeable {
    private var database = openNewIfDamaged()

    /** The cached values, by photo digest. */
    @Synchronized
    fun get(
        space: ByteArray,
        photos: Collection<ByteString>,
    ): Map<ByteString, ByteArray> =
        orElse(emptyMap()) {
            photos.chunked(PHOTOS_A_QUERY).flatMap { some -> getSome(space, some).entries }.associate { it.toPair() }
        }

    /** Store values by photo digest, unless the disk is full. */
    @Synchronized
    fun put(
        space: ByteArray,
        values: Map<ByteString, ByteArray>,
    ) {
        orElse(Unit) {
            database.transaction { db ->
                for ((photo, value) in values) {
                    db.run("DELETE FROM feature WHERE space = ? AND photo = ?", space, photo.toByteArray())
                    putOne(db, space, photo.toByteArray(), value)
                }
            }
            trim()
        }
    }

    /** Delete the values of these photos in all spaces. */
    @Synchronized
    fun forget(photos: Collection<ByteString>) {
        changing { db -> photos.forEach { db.run("DELETE FROM feature WHERE photo = ?", it.toByteArray()) } }
    }

    /** Close the file. */
    @Synchronized
    override fun close() {
        database.close()
    }

    private fun getSome(
        space: ByteArray,
        photos: List<ByteString>,
    ): Map<ByteString, ByteArray> =
        database.transaction { db ->
            val day = today()
            val pieces = LinkedHashMap<ByteString, MutableList<ByteArray>>()
            val stale = LinkedHashSet<ByteString>()
            val marks = photos.joinToString(",") { "?" }
            val digests = photos.map { it.toByteArray() }.toTypedArray()
            db.query(
                "SELECT photo, value, used_day FROM feature WHERE space = ? AND photo IN ($marks) " +
                    "ORDER BY photo, piece",
                space,
                *digests,
            ) { row ->
                val photo = ByteString.copyFrom(row.bytes(0))
                pieces.getOrPut(photo, ::ArrayList) += row.bytes(1)
                if (row.long(2) != day) stale += photo
            }
            for (photo in stale) {
                val digest = photo.toByteArray()
                db.run("UPDATE feature SET used_day = ? WHERE space = ? AND photo = ?", day, space, digest)
            }
            pieces.mapValues { (_, parts) -> parts.singleOrNull() ?: joined(parts) }
        }

    private fun putOne(
        db: Statements,
        space: ByteArray,
        photo: ByteArray,
        value: ByteArray,
    ) {
        // An empty value also has one piece.
        for (piece in 0..(value.size - 1).coerceAtLeast(0) / PIECE_BYTES) {
            val from = piece * PIECE_BYTES
            val to = minOf(from + PIECE_BYTES, value.size)
            db.run(
                "INSERT INTO feature VALUES (?, ?, ?, ?, ?)",
                space,
                photo,
                piece.toLong(),
                today(),
                if (value.size <= PIECE_BYTES) value else value.copyOfRange(from, to),
            )
        }
    }

    private fun trim() {
        while (database.transaction { bytes(it) > maxBytes && deleteOldest(it) }) {
            // Repeat until the rest fits.
        }
    }

    private fun bytes(db: Statements): Long {
        val (pages, free, size) =
            listOf("page_count", "freelist_count", "page_size").map { name ->
                db.query("PRAGMA $name") { it.long(0) }.single()
            }
        return (pages - free) * size
    }

    /** Delete the least recently used quarter, at least one value; false if there was none. */
    private fun deleteOldest(db: Statements): Boolean {
        val oldest =
            db.query(
                "SELECT space, photo FROM feature WHERE piece = 0 ORDER BY used_day, rowid " +
                    "LIMIT max(1, (SELECT count(*) / 4 FROM feature WHERE piece = 0))",
            ) { it.bytes(0) to it.bytes(1) }
        oldest.forEach { (space, photo) -> db.run("DELETE FROM feature WHERE space = ? AND photo = ?", space, photo) }
        return oldest.isNotEmpty()
    }

    private fun <T> orElse(
        nothing: T,
        work: () -> T,
    ): T =
        try {
            work()
        } catch (error: StateException) {
            // For other reasons, such as a full disk or a locked file, values are computed again.
            if (error.reason == Reason.DAMAGED) startAnew()
            nothing
        }

    /** Run a transaction; a damaged file is replaced by an empty one. */
    private fun changing(work: (Statements) -> Unit) {
        try {
            database.transaction(work)
        } catch (error: StateException) {
            if (error.reason != Reason.DAMAGED) throw error
            startAnew()
        }
    }

    private fun startAnew() {
        database.close()
        deleteDatabase(file)
        database = SCHEMA.open(file, openDatabase)
    }

    private fun openNewIfDamaged(): Database {
        checkNotNull(file.absoluteFile.parentFile).let { makeFolder(it, "feature cache") }
        return SCHEMA.openNewIfDamaged(file, openDatabase)
    }

    private companion object {
        const val PHOTOS_A_QUERY = 100

        // On Android, a row must fit into a cursor window of 2 MB.
        const val PIECE_BYTES = 1 shl 18

        val SCHEMA =
            Schema(
                1,
                """CREATE TABLE feature (
                    space BLOB, photo BLOB, piece INTEGER, used_day INTEGER NOT NULL, value BLOB NOT NULL,
                    PRIMARY KEY (space, photo, piece)
                )""",
                "CREATE INDEX feature_photo ON feature (photo)",
            )

        fun joined(pieces: List<ByteArray>): ByteArray {
            val whole = ByteArray(pieces.sumOf { it.size })
            pieces.fold(0) { at, piece -> at + piece.size.also { piece.copyInto(whole, at) } }
            return whole
        }
    }
}
