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
 * What carrying out an assignment needs.
 *
 * @property transport Where parts and blobs come from.
 * @property cache Where they are put.
 * @property features What was computed of photos before.
 * @property files Where large tensors are stored.
 * @property kept Sets of earlier rounds.
 * @property outbox Where results go.
 * @property answers Noisy answers that were given before.
 * @property album The photos.
 * @property decoder Decodes them.
 * @property policy What may be told; asked anew for each assignment.
 * @property engineOf Makes the engine of a bundle, which is closed here.
 * @property worker Where photos are read and models trained: one thread at a time.
 * @property emit Takes events, on the worker's thread or the caller's; must return quickly.
 * @property nanoTime A clock that only runs forward, in nanoseconds.
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
