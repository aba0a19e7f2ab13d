package org.fedlens.sdk.blob

import java.io.File

/** The blob in a file, mapped and checked as a download is: piece by piece. */
internal fun openChecked(file: File): Blob {
    val checker = BlobChecker()
    Blob.open(file).forEachChunk(checker::feed)
    checker.finish()
    return Blob.open(file, checker.digest())
}
