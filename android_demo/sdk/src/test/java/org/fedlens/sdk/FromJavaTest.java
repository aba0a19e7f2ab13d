package org.fedlens.sdk;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import android.app.Application;
import java.io.File;
import java.io.IOException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.fedlens.sdk.album.PhotoAlbum;
import org.fedlens.sdk.album.PhotoBytes;
import org.fedlens.sdk.model.Model;
import org.fedlens.sdk.schedule.Background;
import org.fedlens.sdk.schedule.Conditions;
import org.fedlens.sdk.store.FileSecret;
import org.fedlens.sdk.store.SecretStore;
import org.junit.Test;
import org.junit.runner.RunWith;
import org.robolectric.RobolectricTestRunner;
import org.robolectric.RuntimeEnvironment;
import org.robolectric.annotation.Config;

/** An app in Java takes part without a word of Kotlin. */
@RunWith(RobolectricTestRunner.class)
@Config(sdk = 35)
public class FromJavaTest {
    @Test
    public void anAppInJavaTakesPart() throws Exception {
        Application app = RuntimeEnvironment.getApplication();
        // Without Android's keystore, which a desktop lacks.
        SecretStore secret = new FileSecret(new File(app.getCacheDir(), "secret"));
        FedLens fedlens =
                FedLens.create(
                        app,
                        setup -> {
                            setup.setServer("https://fl.example.org:8443");
                            setup.setSettings(
                                    new ClientSettings(
                                            Publishers.TrustServer.INSTANCE,
                                            "token",
                                            Policy::new,
                                            List.of(),
                                            null,
                                            null,
                                            List.of(),
                                            secret));
                            setup.setConditions(new Conditions(3_600_000L));
                        });
        try {
            fedlens.schedule();
            assertEquals(Background.SCHEDULED, fedlens.getStatus().getValue().getBackground());
            assertTrue(fedlens.learnNow());
            fedlens.setConditions(new Conditions(7_200_000L));
            fedlens.stop();
            PhotoAlbum album = fedlens.albumAsync().get();
            assertEquals(0, album.all().size());
            ExecutionException error =
                    assertThrows(ExecutionException.class, () -> fedlens.predictAsync(new File("cat.jpg")).get());
            assertTrue(error.getCause() instanceof FedLensException);
            // Before the first check-in there is no model, and one that somebody remembers is gone.
            assertNull(fedlens.modelsAsync().get().getInUse());
            assertNull(fedlens.testModelsAsync(7L).get().getNewer());
            Model gone = new Model(1, 7, List.of("cat"), 0, null, null);
            List<CompletableFuture<?>> refused =
                    List.of(fedlens.predictAsync(new File("cat.jpg"), gone), fedlens.adoptAsync(gone));
            for (CompletableFuture<?> each : refused) {
                Throwable cause = assertThrows(ExecutionException.class, each::get).getCause();
                assertTrue(cause instanceof AssignmentException);
            }
            assertFalse("it was never enrolled", fedlens.forgetAsync().get());
            fedlens.eraseHereAsync().get();
        } finally {
            FedLens.getCurrent().close();
        }
    }

    /** A catch does not compile where the call declares no exception. */
    @Test
    public void anAppInJavaCatchesWhatTheSdkThrows() throws Exception {
        Application app = RuntimeEnvironment.getApplication();
        FedLens fedlens = FedLens.create(app, setup -> setup.setFederation(() -> null));
        PhotoAlbum album = fedlens.albumAsync().get();
        try {
            album.add("no photo".getBytes(), "cat.jpg", null);
            fail();
        } catch (PhotoException error) {
            assertEquals(PhotoException.Reason.UNKNOWN_FORMAT, error.getReason());
        }
        try {
            PhotoAlbum.open(new File(app.getDataDir(), "files/fedlens/album"), new AndroidPlatform(app));
            fail();
        } catch (StateException error) {
            assertEquals(StateException.Reason.IN_USE, error.getReason());
        }
        try {
            fedlens.getClient().getClientId();
            fail();
        } catch (StateException | TransportException error) {
            assertEquals(StateException.Reason.NOT_ENROLLED, error.getReason());
        }
        try {
            fedlens.getClient().getJournal().totals();
            fail();
        } catch (StateException | TransportException error) {
            assertEquals(StateException.Reason.NOT_ENROLLED, error.getReason());
        }
        try {
            Publisher.Companion.of("no key");
            fail();
        } catch (StatementException error) {
            assertEquals(StatementException.Reason.KEY, error.getReason());
        }
        ExecutionException refused = assertThrows(ExecutionException.class, () -> fedlens.checkInAsync().get());
        assertTrue(refused.getCause() instanceof StateException);
        fedlens.close();
    }

    @Test
    public void aPhotoMayComeFromWhereReadingFails() {
        PhotoBytes.Content gone =
                () -> {
                    throw new IOException("gone");
                };
        PhotoBytes photo = new PhotoBytes(new AlbumEntry(new byte[32], 0), "cat", "cat.jpg", gone);
        assertThrows(IOException.class, photo.getContent()::read);
    }
}
