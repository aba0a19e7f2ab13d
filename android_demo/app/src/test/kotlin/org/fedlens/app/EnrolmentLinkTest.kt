package org.fedlens.app

import com.google.gson.JsonObject
import com.google.gson.JsonParser
import okhttp3.tls.HeldCertificate
import org.fedlens.app.EnrolmentLink.Problem
import org.fedlens.app.EnrolmentLink.Reading
import org.fedlens.sdk.toHex
import org.junit.Assert.assertEquals
import org.junit.Test
import java.security.MessageDigest
import java.security.cert.CertificateFactory
import java.util.Base64

class EnrolmentLinkTest {
    private val pin = "sha256/" + "A".repeat(43) + "="
    private val vectors = JsonParser.parseString(PlayedServer.vector("links.json").readText()).asJsonObject

    @Test
    fun `every link of the vectors is read as it stands there`() {
        for (vector in vectors.cases("links")) {
            val link = (EnrolmentLink.read(vector["link"].asString) as? Reading.Good)?.link

            val ca = link?.ca?.map { Base64.getUrlDecoder().decode(it).toHex() }
            val held = listOf(link?.server, link?.token, link?.pins, ca, link?.keys?.map { it.id.toHex() })
            val lists = listOf("pins", "ca", "publishers").map { key -> vector[key].asJsonArray.map { it.asString } }
            assertEquals("$vector", listOf(vector["server"].asString, vector["token"].asString) + lists, held)
            val texts = listOf("operator", "purpose").map { vector[it].asString }
            assertEquals("$vector", texts, listOf(link?.operator, link?.purpose))
        }
    }

    @Test
    fun `every other link of the vectors is refused for its reason`() {
        val cases = vectors.cases("refused")
        for (vector in cases) {
            val problem = (EnrolmentLink.read(vector["link"].asString) as? Reading.Bad)?.problem

            assertEquals("$vector", vector["code"].asString, problem?.code)
        }

        assertEquals(Problem.entries.map { it.code }.toSet(), cases.map { it["code"].asString }.toSet())
    }

    private fun JsonObject.cases(key: String): List<JsonObject> = getAsJsonArray(key).map { it.asJsonObject }

    private val Problem.code get() = name.lowercase().replace('_', '-')

    @Test
    fun `a link names server, token and pins, encoded or not`() {
        val link = EnrolmentLink("https://fl.example.org:8443", "abc-_123", listOf(pin))
        val plain = "https://fl.example.org:8443/join#token=abc-_123&pin=$pin"
        val encoded = plain.substringBefore("sha256") + pin.replace("/", "%2F").replace("=", "%3D")

        assertEquals(Reading.Good(link), EnrolmentLink.read(plain))
        assertEquals(Reading.Good(link), EnrolmentLink.read(encoded))
    }

    @Test
    fun `spaces and line breaks of a chat, upper case and what a later version adds do no harm`() {
        val typed = "  HTTPS://fl.exam\nple.org/join/#to ken=t&colour=green "

        assertEquals(Reading.Good(EnrolmentLink("https://fl.example.org", "t", emptyList())), EnrolmentLink.read(typed))
    }

    @Test
    fun `certificates that a link carries are those of a PEM file`() {
        val authorities = List(2) { HeldCertificate.Builder().certificateAuthority(0).build().certificate }
        val values =
            authorities.joinToString("") {
                "&ca=" +
                    Base64.getUrlEncoder().withoutPadding().encodeToString(it.encoded)
            }
        val reading = EnrolmentLink.read("https://a.org/join#token=t$values")

        val pem = checkNotNull((reading as Reading.Good).link.pem)
        assertEquals(authorities, CertificateFactory.getInstance("X.509").generateCertificates(pem.byteInputStream()))
    }

    @Test
    fun `keys of publishers that a link carries are those of the SDK`() {
        val keys = List(2) { HeldCertificate.Builder().ecdsa256().build().keyPair.public.encoded }
        val encoder = Base64.getUrlEncoder().withoutPadding()
        val values = keys.joinToString("") { "&publisher=" + encoder.encodeToString(it) }
        val reading = EnrolmentLink.read("https://a.org/join#token=t$values")

        val ids = (reading as Reading.Good).link.keys.map { it.id.toHex() }
        assertEquals(keys.map { MessageDigest.getInstance("SHA-256").digest(it).toHex() }, ids)
    }

    @Test
    fun `a plus in a pin is a plus`() {
        val plus = "sha256/" + "+".repeat(42) + "8="
        val reading = EnrolmentLink.read("https://a.org/join#token=t&pin=$plus")

        assertEquals(Reading.Good(EnrolmentLink("https://a.org", "t", listOf(plus))), reading)
    }

    @Test
    fun `each wrong input has its own reason and names what was found`() {
        val wrong =
            mapOf(
                "   " to Reading.Bad(Problem.EMPTY),
                "hello" to Reading.Bad(Problem.NOT_A_LINK, "hello"),
                "https://fl.example.org?token=t" to Reading.Bad(Problem.OTHER_LINK, "https://fl.example.org"),
                "https://a.org/leave#token=t" to Reading.Bad(Problem.OTHER_LINK, "https://a.org/leave"),
                "fl.example.org/join#token=t" to Reading.Bad(Problem.NOT_A_LINK, "fl.example.org/join#token=t"),
                "https:///join#token=t" to Reading.Bad(Problem.SERVER_UNREADABLE, "https:"),
                "https://a[b/join#token=t" to Reading.Bad(Problem.SERVER_UNREADABLE, "https://a[b"),
                "https://a.org:0/join#token=t" to Reading.Bad(Problem.SERVER_UNREADABLE, "https://a.org:0"),
                "https://a.org:99999/join#token=t" to Reading.Bad(Problem.SERVER_UNREADABLE, "https://a.org:99999"),
                "http://a.org/join#token=t" to Reading.Bad(Problem.SERVER_NOT_SECURE, "http://a.org"),
                "https://me@a.org/join#token=t" to Reading.Bad(Problem.SERVER_WITH_MORE, "https://me@a.org"),
                "https://a.org/join?b#token=t" to Reading.Bad(Problem.SERVER_WITH_MORE, "https://a.org/join?b"),
                "https://a.org/join" to Reading.Bad(Problem.TOKEN_MISSING),
                "https://a.org/join#token=%20x" to Reading.Bad(Problem.TOKEN_WITH_SPACES),
                "https://a.org/join#token=t&pin=sha1/abc" to Reading.Bad(Problem.PIN_UNREADABLE, "sha1/abc"),
                "https://a.org/join#token=t&pin=sha256/abcd" to Reading.Bad(Problem.PIN_UNREADABLE, "sha256/abcd"),
                "https://a.org/join#token=t&ca=MIIB" to Reading.Bad(Problem.CA_UNREADABLE),
                "https://a.org/join#token=t&ca=%25" to Reading.Bad(Problem.CA_UNREADABLE),
                "https://a.org/join#token=t&publisher=MIIB" to Reading.Bad(Problem.PUBLISHER_UNREADABLE),
                "https://a.org/join#token=t&publisher=%25" to Reading.Bad(Problem.PUBLISHER_UNREADABLE),
                "https://a.org/join#token=t&token=u" to Reading.Bad(Problem.GIVEN_TWICE, "token"),
            )

        assertEquals(wrong, wrong.mapValues { (typed, _) -> EnrolmentLink.read(typed) })
    }

    @Test
    fun `plain HTTP is for the machine itself alone`() {
        val own = "http://127.0.0.1:8443/join#token=t"

        assertEquals(Reading.Good(EnrolmentLink("http://127.0.0.1:8443", "t", emptyList())), EnrolmentLink.read(own))
    }
}
