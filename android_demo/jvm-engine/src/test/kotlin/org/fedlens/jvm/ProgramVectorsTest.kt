package org.fedlens.jvm

import org.fedlens.sdk.engine.ProgramVectors
import org.junit.Before
import org.junit.Rule
import org.junit.Test
import org.junit.rules.TemporaryFolder

/** The vectors of programs on this runtime. */
class ProgramVectorsTest {
    @get:Rule
    val folder = TemporaryFolder()

    private val vectors by lazy { ProgramVectors(JniRuntime(), folder.root) }

    @Before
    fun aRuntimeIsThere() = PhoneNumbers.assumeRuntime()

    @Test
    fun embed() = vectors.embed()

    @Test
    fun step() = vectors.step()

    @Test
    fun predict() = vectors.predict()

    @Test
    fun derive() = vectors.derive()

    @Test
    fun train() = vectors.train()
}
