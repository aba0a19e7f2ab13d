package org.fedlens.sdk;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.File;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.fedlens.sdk.album.PhotoAlbum;
import org.fedlens.sdk.schedule.Background;
import org.fedlens.sdk.schedule.Conditions;
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
        FedLens fedlens =
                FedLens.create(
                        RuntimeEnvironment.getApplication(),
                        setup -> {
                            setup.setServer("https://fl.example.org:8443");
                            setup.setSettings(new ClientSettings(Publishers.TrustServer.INSTANCE, "token"));
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
        } finally {
            FedLens.getCurrent().close();
        }
    }
}
