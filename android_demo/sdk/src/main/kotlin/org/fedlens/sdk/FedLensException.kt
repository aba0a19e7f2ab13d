package org.fedlens.sdk

/**
 * Something read from outside is not what it must be, or something given cannot be stored.
 *
 *     FedLensException
 *     ├── BlobException       bytes that are no well-formed blob, or tensors that no blob can hold
 *     ├── EngineException     a program cannot be loaded or run, or gave a NaN
 *     ├── ManifestException   a bundle that cannot be used
 *     ├── PassException       an assignment that is given up; the server is told the reason
 *     ├── PhotoException      a file that cannot be used as a photo
 *     ├── StateException      the client's own folder or database cannot be used
 *     ├── TransportException  a call to the server did not give what it should
 *     └── WireException       a message that cannot be read, or is too long to be sent
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

        /** A well-formed difference to another blob, or to other tensors, than the one it is added to. */
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

/** A program of a bundle could not do what was asked. */
public class EngineException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What went wrong. */
    public enum class Reason {
        /** The bundle cannot be loaded or run by this engine. */
        BUNDLE_UNUSABLE,

        /** Weights, rows, batches or hyper-parameters are not what the bundle allows; the text names the first one. */
        BAD_INPUT,

        /** A NaN or an infinity came out; nothing of this training may be uploaded. */
        NON_FINITE,

        /** What the engine runs programs with is not there, or not for this machine. */
        RUNTIME_MISSING,
    }
}

/**
 * An assignment cannot be carried out; the round goes on without this client. The server is told the reason and the
 * message, which therefore holds no file name.
 */
public class PassException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What the server is told, as `FailureReason` has it. */
    public enum class Reason {
        /** There is no labelled train photo. */
        NO_PHOTOS,

        /** The bundle cannot be loaded or run. */
        BUNDLE,

        /** The assignment asks for something that this version does not know. */
        UNSUPPORTED,

        /** The client's policy forbids an answer that was asked for. */
        POLICY,

        /** Training gave a NaN or an infinity. */
        NON_FINITE,

        /** Anything else. */
        INTERNAL,
    }
}

/** What a client keeps cannot be used; nothing in it was changed. */
public class StateException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** What keeps it from being used. */
    public enum class Reason {
        /** It belongs to a client of another server, or with another identity. */
        BOUND_TO_ANOTHER,

        /** It is open elsewhere. */
        IN_USE,

        /** It was written by a newer version. */
        NEWER_VERSION,

        /** It cannot be read. */
        DAMAGED,

        /** It cannot be written, such as for want of room. */
        NOT_WRITABLE,

        /** This client is not enrolled yet and has no enrolment token. */
        NOT_ENROLLED,
    }
}

/**
 * A call to the server did not give what it should.
 *
 * @property code The server's word for why, where it has refused; empty otherwise.
 */
public class TransportException(
    override val reason: Reason,
    message: String,
    public val code: String = "",
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** Who is at fault, and whether waiting helps. */
    public enum class Reason {
        /** The server carries the request out neither now nor later. */
        REFUSED,

        /** No usable answer for as long as the caller was ready to wait. */
        UNREACHABLE,

        /** The server has not shown to be the one that it should be. */
        UNTRUSTED,

        /** Something answered that does not speak the protocol, or not what was asked for came back. */
        BAD_ANSWER,
    }
}
