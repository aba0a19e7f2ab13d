package org.fedlens.sdk

/**
 * The root of this package's exceptions: external input is invalid, or data cannot be stored.
 *
 *     FedLensException
 *     ├── AssignmentException an assignment that is given up; the server learns the reason
 *     ├── BlobException       bytes that are no well-formed blob, or tensors that no blob can hold
 *     ├── EngineException     a program cannot be loaded or run, or gave a NaN
 *     ├── ManifestException   a bundle that cannot be used
 *     ├── PhotoException      a file that cannot be used as a photo
 *     ├── StateException      the client's own folder or database cannot be used
 *     ├── StatementException  a publisher's statement that does not let this client run a bundle
 *     ├── TransportException  a call to the server did not give what it should
 *     └── WireException       a message that cannot be read, or is too long to be sent
 *
 * [reason] is for programs, the message for people. Other disk and network failures are a [java.io.IOException], and
 * arguments that the caller could have checked are an [IllegalArgumentException].
 */
public sealed class FedLensException(
    message: String,
    cause: Throwable? = null,
) : Exception(message, cause) {
    /** The reason, from the enum of the exception's class. */
    public abstract val reason: Enum<*>
}

/**
 * Bytes that are not a well-formed blob or not the expected one, or tensors that no blob can hold. Fetch the blob
 * again.
 */
public class BlobException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of a blob. */
    public enum class Reason {
        /** It does not start with a blob's magic bytes. */
        NOT_A_BLOB,

        /** It has a format version that this program does not read. */
        UNKNOWN_VERSION,

        /** Bytes are missing. */
        TRUNCATED,

        /** Bytes follow the end. */
        TRAILING_BYTES,

        /** The header, the blob, or a requested range is larger than allowed. */
        TOO_LARGE,

        /** The header cannot be read, or is not in canonical form. */
        DAMAGED_HEADER,

        /** A tensor has a name, type or shape that no blob may hold. */
        TENSOR_NOT_ALLOWED,

        /** Padding holds bytes other than zero. */
        DAMAGED_PADDING,

        /** A NaN, an infinity, or a number too large for the codec. */
        NOT_FINITE,

        /** Scales and values of an int8 tensor do not match. */
        DAMAGED_INT8,

        /** A well-formed delta whose base is another blob, or has other tensors, than the one it is added to. */
        UNEXPECTED,
    }
}

/** A publisher's statement about a bundle that does not let this client run it. */
public class StatementException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of a statement. */
    public enum class Reason {
        /** The text is no public key of ECDSA on P-256 in PEM form. */
        KEY,

        /** The bytes are no whole statement. */
        MALFORMED,

        /** Nobody who is trusted has published the bundle. */
        PUBLISHER,

        /** The signature is not that of the publisher who is named. */
        SIGNATURE,

        /** It is about another bundle. */
        BUNDLE,

        /** The bundle is for other applications. */
        AUDIENCE,

        /** The publisher has withdrawn the bundle: its serial is too low. */
        SERIAL,

        /** The statement has ended. */
        EXPIRED,
    }
}

/** A bundle that cannot be used. Fetch it again; if that does not help, export it again. */
public class ManifestException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of a bundle. */
    public enum class Reason {
        /** There is no manifest. */
        MISSING,

        /** The manifest is longer than allowed. */
        TOO_LARGE,

        /** The bytes are not a manifest. */
        DAMAGED,

        /** A field is unset, out of range, or contradicts another. */
        INVALID,

        /** The file of a part is missing. */
        PART_MISSING,

        /** The file of a part has the wrong SHA-256. */
        PART_DAMAGED,

        /** There is no such program, or not in that format. */
        NO_SUCH_PROGRAM,
    }
}

/** A file that cannot be used as a photo. Skip it and report that. */
public class PhotoException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of a photo. */
    public enum class Reason {
        /** Neither JPEG, PNG, WebP nor BMP. */
        UNKNOWN_FORMAT,

        /** HEIC, which preprocessing does not support. */
        HEIC,

        /** It cannot be decoded completely. */
        DAMAGED,

        /** More pixels than allowed. */
        TOO_LARGE,
    }
}

/** A message that cannot be read, or is too long to send. */
public class WireException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of a message. */
    public enum class Reason {
        /** The bytes are not a message of this type. */
        DAMAGED,

        /** It is longer than allowed. */
        TOO_LARGE,

        /** Its parts contradict each other. */
        INCONSISTENT,
    }
}

/** A program of a bundle failed. */
public class EngineException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The kind of failure. */
    public enum class Reason {
        /** The bundle cannot be loaded or run by this engine. */
        BUNDLE_UNUSABLE,

        /**
         * Weights, rows, batches or hyper-parameters are not what the bundle allows; the message names the first fault.
         */
        BAD_INPUT,

        /** A result is NaN or infinite; nothing of this training may be uploaded. */
        NON_FINITE,

        /** The engine's native runtime is missing, or is not for this machine; or it has no process to run in. */
        RUNTIME_MISSING,

        /** A program has ended the process that it ran in; its bundle must wait. */
        CRASHED,
    }
}

/**
 * An assignment that cannot be carried out; the round continues without this client. The server receives the reason and
 * the message, which therefore contains no file name.
 */
public class AssignmentException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The reason sent to the server, as in `FailureReason`. */
    public enum class Reason {
        /** There is no labelled train photo. */
        NO_PHOTOS,

        /** The bundle cannot be loaded or run. */
        BUNDLE,

        /** The assignment asks for something that this version does not support. */
        UNSUPPORTED,

        /** The client's policy forbids something that was asked for. */
        POLICY,

        /** Training gave a NaN or an infinity. */
        NON_FINITE,

        /** Anything else. */
        INTERNAL,
    }
}

/** A client's stored state cannot be used; nothing in it was changed. */
public class StateException(
    override val reason: Reason,
    message: String,
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The fault of the stored state. */
    public enum class Reason {
        /** It belongs to a client of another server, or with another identity. */
        BOUND_TO_ANOTHER,

        /** It is open elsewhere. */
        IN_USE,

        /** It was written by a newer version. */
        NEWER_VERSION,

        /** It cannot be read. */
        DAMAGED,

        /** It cannot be written now, for example because the disk is full, or the phone's keystore does not answer. */
        NOT_WRITABLE,

        /** This client is not enrolled yet and has no enrolment token. */
        NOT_ENROLLED,
    }
}

/**
 * A failed call to the server.
 *
 * @property code The server's error code if it refused; empty otherwise.
 */
public class TransportException(
    override val reason: Reason,
    message: String,
    public val code: String = "",
    cause: Throwable? = null,
) : FedLensException(message, cause) {
    /** The kind of failure. */
    public enum class Reason {
        /** The server refuses the request for good. */
        REFUSED,

        /** No usable response came within the time allowed. */
        UNREACHABLE,

        /** The model is not here, and the call does not fetch it over a metered network. */
        NO_UNMETERED_NETWORK,

        /** The server could not prove its identity. */
        UNTRUSTED,

        /** The response does not follow the protocol, or is not what was asked for. */
        BAD_ANSWER,
    }
}
