package org.fedlens.sdk.blob

import org.junit.Assert.assertEquals
import org.junit.Test

class Float16Test {
    @Test
    fun `every finite half comes back as itself`() {
        for (bits in 0..0xffff) {
            val half = bits.toShort()
            if (Float16.isFinite((bits shr 8).toByte())) assertEquals(half, Float16.encode(Float16.decode(half)))
        }
    }

    @Test
    fun `what lies between two halves goes to the nearer one, from the middle to the even one`() {
        for (bits in 0 until 0x7bff) {
            val lower = Float16.decode(bits.toShort())
            val upper = Float16.decode((bits + 1).toShort())
            // Exact: neighbours differ by one unit of 10 bits, float32 has 23.
            val middle = (lower + upper) / 2
            assertEquals((bits + (bits and 1)).toShort(), Float16.encode(middle))
            assertEquals(bits.toShort(), Float16.encode(Math.nextDown(middle)))
            assertEquals((bits + 1).toShort(), Float16.encode(Math.nextUp(middle)))
            assertEquals((0x8000 or (bits + (bits and 1))).toShort(), Float16.encode(-middle))
        }
    }

    @Test
    fun `from 65520 on halves are infinite`() {
        assertEquals(0x7bff.toShort(), Float16.encode(Math.nextDown(65520f)))
        assertEquals(0x7c00.toShort(), Float16.encode(65520f))
        assertEquals(0xfc00.toShort(), Float16.encode(-Float.MAX_VALUE))
        assertEquals(Float.POSITIVE_INFINITY, Float16.decode(0x7c00))
    }
}
