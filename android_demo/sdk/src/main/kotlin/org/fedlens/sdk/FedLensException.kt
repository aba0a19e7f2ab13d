package org.fedlens.sdk

/**
 * Something read from outside is not what it must be, or something given cannot be stored.
 *
 *     FedLensException
 *     ├── BlobException      bytes that are no well-formed blob, or tensors that no blob can hold
 *     ├── ManifestException  a bundle that cannot be used
 *     ├── PhotoException     a file that cannot be used as a photo
 *     └── WireException      a message that cannot be read, or is too long to be sent
 *
 * [reason] is for programs, the message for people. Faults of disk and network are [java.io.IOException], and arguments
 * that the caller could have checked are [IllegalArgumentException].
 */
public sealed class FedLensException(
    message: String,
    cause: Throwable? = null,
) : Exception(message, cause) {
    /** Which one of the reasons of its class. */
    public abstract val reason: Enum<*>
}

/** Bytes that are no well-formed blob, or not the expected one, or tensors that no blob can hold. Fetch it anew. */
public class BlobException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What is wrong with a blob. */
    public enum class Reason {
        /** It does not start like a blob. */
        NOT_A_BLOB,

        /** It is of a format version that this program does not read. */
        UNKNOWN_VERSION,

        /** Bytes are missing. */
        TRUNCATED,

        /** There are bytes behind the end. */
        TRAILING_BYTES,

        /** The header, the blob, or what was asked of it is longer than allowed. */
        TOO_LARGE,

        /** The header cannot be read, or is not in its only allowed form. */
        DAMAGED_HEADER,

        /** A tensor has a name, type or shape that no blob may hold. */
        TENSOR_NOT_ALLOWED,

        /** Padding holds something else than zeros. */
        DAMAGED_PADDING,

        /** A NaN, an infinity, or a number too large for the codec. */
        NOT_FINITE,

        /** Scales and values of an int8 tensor do not belong together. */
        DAMAGED_INT8,

        /** A well-formed blob with other tensors, or another base, than expected. */
        UNEXPECTED,

        /** The bytes have another SHA-256 than they must have. */
        WRONG_DIGEST,
    }
}

/** A bundle that cannot be used. Fetch it anew; if that does not help, it must be exported again. */
public class ManifestException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What is wrong with a bundle. */
    public enum class Reason {
        /** There is no manifest. */
        MISSING,

        /** The manifest is longer than allowed. */
        TOO_LARGE,

        /** The bytes are no manifest. */
        DAMAGED,

        /** A field is unset, out of range, or contradicts another. */
        INVALID,

        /** The file of a part is missing. */
        PART_MISSING,

        /** The file of a part has another SHA-256 than it must have. */
        PART_DAMAGED,

        /** There is no such program, or not in that format. */
        NO_SUCH_PROGRAM,
    }
}

/** A file that cannot be used as a photo. Leave it out and say so. */
public class PhotoException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What is wrong with a photo. */
    public enum class Reason {
        /** Neither JPEG, PNG, WebP nor BMP. */
        UNKNOWN_FORMAT,

        /** HEIC, which the rule for photos leaves out. */
        HEIC,

        /** It cannot be decoded completely. */
        DAMAGED,

        /** More pixels than allowed. */
        TOO_LARGE,
    }
}

/** A message that cannot be read, or is too long to be sent. */
public class WireException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What is wrong with a message. */
    public enum class Reason {
        /** The bytes are no such message. */
        DAMAGED,

        /** It is of a version of the protocol that this program does not speak. */
        UNKNOWN_PROTOCOL,

        /** Bytes are missing. */
        TRUNCATED,

        /** It is longer than allowed. */
        TOO_LARGE,

        /** Its parts contradict each other. */
        INCONSISTENT,
    }
}
