package org.fedlens.sdk.pass

import kotlinx.coroutines.CoroutineDispatcher
import org.fedlens.sdk.Bundle
import org.fedlens.sdk.Event
import org.fedlens.sdk.Policy
import org.fedlens.sdk.album.Album
import org.fedlens.sdk.engine.Engine
import org.fedlens.sdk.net.Transport
import org.fedlens.sdk.photo.PhotoDecoder
import org.fedlens.sdk.store.Cache
import org.fedlens.sdk.store.FeatureCache
import org.fedlens.sdk.store.KeptAnswers
import org.fedlens.sdk.store.KeptSets
import org.fedlens.sdk.store.Outbox
import org.fedlens.sdk.store.TensorFiles

/**
 * The collaborators for carrying out assignments.
 *
 * @property transport Source of parts and blobs.
 * @property cache Cache for them.
 * @property features Cached features of photos.
 * @property files Storage for large tensors.
 * @property kept Client state from earlier rounds.
 * @property outbox Outbox for results.
 * @property answers Noisy answers given earlier.
 * @property album The photos.
 * @property decoder Decoder of photos.
 * @property policy Source of the policy, read anew for each assignment.
 * @property engineOf Creates the engine of a bundle; the caller closes it.
 * @property worker Dispatcher for reading photos and training, one thread at a time.
 * @property emit Receiver of events, on the worker's thread or the caller's; must return quickly.
 * @property nanoTime A monotonic clock, in nanoseconds.
 */
internal class Desk(
    val transport: Transport,
    val cache: Cache,
    val features: FeatureCache,
    val files: TensorFiles,
    val kept: KeptSets,
    val outbox: Outbox,
    val answers: KeptAnswers,
    val album: Album,
    val decoder: PhotoDecoder,
    val policy: () -> Policy,
    val engineOf: (Bundle) -> Engine,
    val worker: CoroutineDispatcher,
    val emit: (Event) -> Unit,
    val nanoTime: () -> Long = System::nanoTime,
)
