package org.fedlens.sdk.engine

/** How often each bundle has ended the process that ran its programs. */
public interface CrashLog {
    /**
     * The reason not to run a bundle now; null: it may run.
     *
     * @param bundle SHA-256 of its manifest.
     */
    public fun refusal(bundle: ByteArray): String?

    /** Count one more end of a process; a text that says what follows from it. */
    public fun note(bundle: ByteArray): String
}
