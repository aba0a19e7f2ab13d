import com.android.build.api.variant.HasHostTestsBuilder
import com.android.build.api.variant.HostTestBuilder
import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    alias(libs.plugins.android.application)
    alias(libs.plugins.kotlin.android)
}

android {
    namespace = "org.fedlens.app"
    compileSdk = libs.versions.compile.sdk.get().toInt()

    defaultConfig {
        applicationId = "org.fedlens.app"
        minSdk = libs.versions.min.sdk.get().toInt()
        targetSdk = libs.versions.compile.sdk.get().toInt()
        versionCode = 1
        versionName = libs.versions.fedlens.get()
        // The host of the server whose links to join open this app: gradle -Pfedlens.join.host=HOST.
        manifestPlaceholders["joinHost"] = providers.gradleProperty("fedlens.join.host").getOrElse("fl.example.org")
        ndk {
            // What the ExecuTorch AAR has.
            abiFilters += listOf("arm64-v8a", "x86_64")
        }
    }

    buildTypes {
        release {
            isMinifyEnabled = true
            isShrinkResources = true
            // The SDK and the ExecuTorch AAR bring their own rules.
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
        }
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_11
        targetCompatibility = JavaVersion.VERSION_11
    }

    packaging {
        jniLibs {
            // Native libraries lie uncompressed and, with this version of the plugin, at multiples of 16 KB.
            useLegacyPackaging = false
        }
    }
}

androidComponents {
    beforeVariants { variant ->
        // Maven runs the tests, with libraries that are not named here.
        (variant as HasHostTestsBuilder).hostTests[HostTestBuilder.UNIT_TEST_TYPE]?.enable = false
    }
}

kotlin {
    compilerOptions {
        jvmTarget = JvmTarget.JVM_11
    }
}

dependencies {
    implementation(project(":sdk"))
    implementation(libs.zxing)
}
