package org.fedlens.sdk.engine

import java.nio.ByteBuffer

/**
 * A table of an untrusted FlatBuffer, read field by field with a bounds check of every offset.
 *
 * Fields are numbered in the order of the schema; an absent field has its default. An offset outside the bytes is an
 * [IndexOutOfBoundsException]. Format: https://flatbuffers.dev/internals.
 *
 * @param raw The whole FlatBuffer, from 0 to the limit, little-endian.
 */
internal class FlatTable(
    private val raw: ByteBuffer,
    private val position: Long,
) {
    /** A field of type signed byte; 0 if absent. */
    fun byte(field: Int): Int = place(field)?.let { raw.get(at(it)).toInt() } ?: 0

    /** A field of type table; null if absent. */
    fun table(field: Int): FlatTable? = target(field)?.let { FlatTable(raw, it) }

    /** A field of type string, cut to [most] bytes; empty if absent. */
    fun text(
        field: Int,
        most: Int,
    ): String {
        val (start, count) = vector(field) ?: return ""
        val bytes = ByteArray(minOf(count, most.toLong()).toInt()) { raw.get(at(start + it)) }
        return String(bytes, Charsets.UTF_8)
    }

    /** The number of elements of a vector; 0 if absent. */
    fun count(field: Int): Long = vector(field)?.second ?: 0

    /** Element [index] of a vector of int32. */
    fun intOf(
        field: Int,
        index: Long,
    ): Int = raw.getInt(at(element(field, index, INT_BYTES)))

    /** Element [index] of a vector of unsigned bytes. */
    fun byteOf(
        field: Int,
        index: Long,
    ): Int = raw.get(at(element(field, index, 1))).toInt() and 0xFF

    /** Element [index] of a vector of tables. */
    fun tableOf(
        field: Int,
        index: Long,
    ): FlatTable {
        val place = element(field, index, INT_BYTES)
        return FlatTable(raw, place + unsigned(place))
    }

    private fun element(
        field: Int,
        index: Long,
        bytes: Int,
    ): Long {
        val (start, count) = vector(field) ?: throw IndexOutOfBoundsException("no field $field")
        if (index !in 0 until count) throw IndexOutOfBoundsException("element $index of $count")
        return start + index * bytes
    }

    /** Position of a vector's first element, and the number of elements. */
    private fun vector(field: Int): Pair<Long, Long>? = target(field)?.let { it + INT_BYTES to unsigned(it) }

    private fun target(field: Int): Long? = place(field)?.let { it + unsigned(it) }

    /** Position of a field; null if absent. */
    private fun place(field: Int): Long? {
        val table = position - raw.getInt(at(position))
        val entry = FIRST_FIELD + 2 * field
        if (entry + 2 > short(table)) return null
        val offset = short(table + entry)
        return if (offset == 0) null else position + offset
    }

    private fun unsigned(place: Long): Long = raw.getInt(at(place)).toLong() and 0xFFFF_FFFFL

    private fun short(place: Long): Int = raw.getShort(at(place)).toInt() and 0xFFFF

    private fun at(place: Long): Int {
        if (place !in 0 until raw.limit()) throw IndexOutOfBoundsException("an offset to $place")
        return place.toInt()
    }

    companion object {
        private const val INT_BYTES = 4

        /** Bytes of a vtable before the field offsets: its own size and the table's. */
        private const val FIRST_FIELD = 4

        /** The outermost table. */
        fun root(raw: ByteBuffer): FlatTable = FlatTable(raw, raw.getInt(0).toLong() and 0xFFFF_FFFFL)
    }
}
