package org.fedlens.sdk

/** Whose bundles a client runs. */
public sealed interface Publishers {
    /**
     * Bundles that publishers have signed for this client.
     *
     * @property keys Source of the publishers, read before each use of a bundle: one that is left out is revoked.
     */
    public class Keys(
        public val keys: () -> List<Publisher>,
    ) : Publishers

    /** Every bundle that the server names. Whoever has the server then has this client, too. */
    public data object TrustServer : Publishers
}
