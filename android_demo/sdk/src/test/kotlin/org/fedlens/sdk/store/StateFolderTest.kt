package org.fedlens.sdk.store

import org.fedlens.jvm.JdbcDatabase
import org.fedlens.proto.v1.Capabilities
import org.fedlens.sdk.StateException
import org.fedlens.sdk.StateException.Reason
import org.junit.Assert.assertArrayEquals
import org.junit.Assert.assertEquals
import org.junit.Assert.assertFalse
import org.junit.Assert.assertNull
import org.junit.Assert.assertThrows
import org.junit.Assert.assertTrue
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder
import java.io.File
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

class StateFolderTest {
    @get:Rule
    val temporary = TemporaryFolder()

    private val folder by lazy { File(temporary.root, "state") }

    private fun open(
        server: String = SERVER,
        secrets: SecretStore = FileSecret(File(folder, "secret")),
        at: File = folder,
    ) = StateFolder.open(at, server, JdbcDatabase::open, secrets)

    private class Given(
        private val first: Int,
    ) : SecretStore {
        override fun secret() = ByteArray(32) { first.toByte() }

        override fun delete() = Unit
    }

    @Test
    fun `the secret is made once and readable by its owner alone`() {
        val secret = open().use { it.secret }
        assertArrayEquals(secret, open().use { it.secret })
        assertEquals(32, secret.size)
        val mode = Files.getPosixFilePermissions(File(folder, "secret").toPath())
        assertEquals("rw-------", PosixFilePermissions.toString(mode))
        assertEquals("rwx------", PosixFilePermissions.toString(Files.getPosixFilePermissions(folder.toPath())))
    }

    @Test
    fun `two folders are two identities`() {
        val one = StateFolder.open(File(temporary.root, "a"), SERVER, JdbcDatabase::open).use { it.clientId }
        val two = StateFolder.open(File(temporary.root, "b"), SERVER, JdbcDatabase::open).use { it.clientId }
        assertFalse(one.contentEquals(two))
    }

    @Test
    fun `a secret from elsewhere is not written into the folder`() {
        open(secrets = Given(1)).close()
        assertFalse(File(folder, "secret").exists())
    }

    @Test
    fun `a folder belongs to one server and one identity`() {
        open(secrets = Given(1)).close()
        val server = assertReason(Reason.BOUND_TO_ANOTHER) { open("https://other", Given(1)).close() }
        assertTrue(server, "belongs to https://fl.example.org, not to server https://other" in server)
        val identity = assertReason(Reason.BOUND_TO_ANOTHER) { open(secrets = Given(2)).close() }
        assertTrue(identity, "not to this identity" in identity)
        open(secrets = Given(1)).close()
    }

    @Test
    fun `two clients of one process cannot use one folder at a time`() {
        open().use {
            val message = assertInUse { open(at = File(folder, "../state")).close() }
            assertTrue(message, "in use by another part of this process" in message)
        }
        open().close()
    }

    @Test
    fun `a newer folder is refused and left alone`() {
        open().close()
        val file = File(folder, "client.sqlite3")
        JdbcDatabase.open(file).use { database -> database.transaction { it.run("PRAGMA user_version = 2") } }
        val message = assertReason(Reason.NEWER_VERSION) { open().close() }
        assertTrue(message, "was written by a newer fedlens (schema 2, this one reads 1)" in message)
        JdbcDatabase.open(file).use { database ->
            assertEquals(2L, database.transaction { db -> db.query("PRAGMA user_version") { it.long(0) }.single() })
        }
    }

    @Test
    fun `a damaged database is named, and leaves the folder free`() {
        open().close()
        File(folder, "client.sqlite3").writeText("no database at all".repeat(1000))
        repeat(2) {
            val message = assertReason(Reason.DAMAGED) { open().close() }
            assertTrue(message, "client.sqlite3 cannot be used" in message)
        }
    }

    @Test
    fun `a damaged secret is named, with what to do`() {
        open().close()
        File(folder, "secret").writeBytes(ByteArray(5))
        val message = assertReason(Reason.DAMAGED) { open().close() }
        assertTrue(message, "must hold 32 bytes, found 5; restore it, or erase" in message)
    }

    @Test
    fun `a secret that cannot be read is named and leaves the folder free`() {
        File(folder, "secret").mkdirs()
        assertReason(Reason.DAMAGED) { open().close() }
        File(folder, "secret").delete()
        open().close()
    }

    @Test
    fun `half a secret, left by a crash, is no secret`() {
        folder.mkdirs()
        File(folder, "secret.new").writeBytes(ByteArray(5))
        assertEquals(32, open().use { it.secret.size })
        assertFalse(File(folder, "secret.new").exists())
    }

    @Test
    fun `a file where the folder should be is named`() {
        folder.writeText("x")
        assertReason(Reason.NOT_WRITABLE) { open().close() }
    }

    @Test
    fun `a reset keeps identity, noisy answers and journal, and deletes role and client state`() {
        Stores(temporary.root) { JdbcDatabase.open(it) }.use { stores ->
            val kept = listOf("role", "current", "not_before")
            for (key in kept) stores.state.set(key to byteArrayOf(1))
            val answer = NoisyAnswers(stores.state).answer(listOf("a", "b"), longArrayOf(1, 1), 1.0)
            stores.run(Step.Put(1, 5, upload = true, state = true, large = true))
            stores.run(Step.Deliver)
            stores.run(Step.Put(2, 6, upload = true, state = true, large = true))
            val id = stores.state.clientId
            stores.state.reset()

            for (key in kept) assertNull(key, stores.state.get(key))
            assertNull(stores.outbox.first())
            assertNull(stores.clientState.current(TASK, "mine"))
            assertEquals(emptyList<String>(), stores.state.tensorFolder.list()?.toList())
            assertArrayEquals(id, stores.state.clientId)
            val outcomes = stores.journal.entries().map { it.outcome }
            assertEquals(listOf(JournalEntry.Outcome.DROPPED, JournalEntry.Outcome.DELIVERED), outcomes)
            val again = NoisyAnswers(stores.state).answer(listOf("a", "b"), longArrayOf(9, 1), 50.0)
            assertArrayEquals(answer, again, 0.0)
        }
    }

    @Test
    fun `what is erased is a new client the next time, whose noisy answers stay the old ones`() {
        lateinit var answer: DoubleArray
        val before =
            open().use { state ->
                answer = NoisyAnswers(state).answer(listOf("a", "b"), longArrayOf(1, 1), 1.0)
                Journal(state).enrolment(Capabilities.getDefaultInstance(), 10)
                File(state.cacheFolder, "parts").mkdirs()
                assertInUse { erase() }
                state.clientId
            }
        erase()
        assertFalse(File(folder, "cache").exists())
        open().use { state ->
            assertEquals(0, Journal(state).entries().size)
            assertFalse(before.contentEquals(state.clientId))
            assertArrayEquals(answer, NoisyAnswers(state).answer(listOf("a", "b"), longArrayOf(1, 1), 1.0), 0.0)
        }
    }

    @Test
    fun `a folder that cannot be opened can be erased`() {
        open().close()
        val breakages =
            listOf<() -> Unit>(
                { File(folder, "secret").writeBytes(ByteArray(5)) },
                { File(folder, "secret").delete() }, // the next one is another client's
                { File(folder, "client.sqlite3").writeText("no database at all".repeat(1000)) },
            )
        for (breaks in breakages) {
            breaks()
            assertThrows(StateException::class.java) { open().close() }
            erase()
            open().close()
        }
    }

    private fun erase() = StateFolder.erase(folder, JdbcDatabase::open, FileSecret(File(folder, "secret")))
}
