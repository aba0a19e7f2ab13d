package org.fedlens.sdk.model

/** The rule by which a newer model takes the place of the one in use for predictions; rounds do not depend on it. */
public enum class Adoption {
    /** A newer model is used as soon as it is on the phone. */
    ALWAYS,

    /**
     * A newer model is tested after a round or check-in, and used if it classifies strictly more of the phone's own
     * test photos correctly. On a tie, and so without test photos, the older one stays. It is not tested again before
     * there are other test photos or another model.
     */
    IF_BETTER,

    /** Only [org.fedlens.sdk.FedLensClient.adopt] changes the model in use. */
    WHEN_TOLD,
}
